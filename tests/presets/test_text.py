"""A preset written as text is read back as it was, comments and all."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tvae import presets
from tvae.presets import loader
from tvae.presets.loader import BUILT_IN
from tvae.presets.text import text_of


@pytest.mark.parametrize("name", BUILT_IN)
def test_what_is_written_is_read_back(name: str, tmp_path: Path) -> None:
    preset = presets.load(name)
    path = tmp_path / f"{name}.toml"
    path.write_text(text_of(preset), encoding="utf-8")
    assert presets.load(path) == dataclasses.replace(preset, source=path)


def test_odd_texts_and_every_value(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    odd = dataclasses.replace(
        presets.load("h200"),
        name="mine",
        title='A "card" \\1 with a tail\\',
        description="zwei\nZeilen, µs",
        dtype="float16",
        cudnn_benchmark=False,
        cuda_graphs=False,
        strip_rows=7,
        memory_share=0.25,
        io_workers=1,
        queue_frames=3,
        levels={"default": "cuda", "sample": "native"},
        measured={"levels": 'a "quoted" [basis] = 5'},
        source=path,
    )
    path.write_text(text_of(odd), encoding="utf-8")
    assert presets.load(path) == dataclasses.replace(odd, description="zwei Zeilen, µs")


def test_comments_stay() -> None:
    text = text_of(dataclasses.replace(presets.load("a100"), name="mine"))
    assert text.startswith("# tvae preset 'mine': A100, A30 (Ampere, 8.0).\n")
    shipped = Path(loader.__file__).with_name("defaults.toml").read_text(encoding="utf-8").split("\n\n", 1)[1]
    comments = [line for line in shipped.splitlines() if line.startswith("#")]
    assert comments[0].startswith("# Type of the computation")
    assert [line for line in text.splitlines() if line.startswith("#")][4:] == comments
