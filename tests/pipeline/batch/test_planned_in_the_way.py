"""What stands in the place of an output and is not to be replaced: a dry run of a batch says what the run then says."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clips import write_clip
from job_files import photo
from outcomes import outcomes
from safetensors.numpy import save_file

Batch = Callable[..., Any]


def said_and_done(batch: Batch, text: str) -> tuple[dict[str, tuple[str, ...]], dict[str, tuple[str, ...]]]:
    said, happened = (outcomes(batch(text, dry_run=dry)[1]) for dry in (True, False))
    return said, happened


def failed(found: dict[str, tuple[str, ...]]) -> set[str]:
    return {name for name, (what, *_) in found.items() if what == "failed"}


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    for n in range(5):
        photo(tmp_path / f"in/{n}.png", n)
    for n in range(3):
        write_clip(tmp_path / f"in/c{n}.mkv", 2, sound=False)
    return tmp_path / "in"


def pipe(path: Path) -> None:
    if hasattr(os, "mkfifo"):
        os.mkfifo(path)
    else:
        path.mkdir()


def in_the_way_of_latents(out: Path) -> None:
    out.mkdir()
    (out / "0.png.safetensors").write_bytes(b"a note")
    (out / "1.png.safetensors").mkdir()
    save_file({"latents": np.zeros((4, 2, 4), np.float32)}, out / "2.png.safetensors")
    pipe(out / "3.png.safetensors")
    (out / "c0.mkv.latents").mkdir()
    (out / "c0.mkv.latents/notes.txt").write_text("mine")
    (out / "c1.mkv.latents").write_text("mine")


def in_the_way_of_pictures(out: Path) -> None:
    out.mkdir()
    (out / "0.png").mkdir()
    (out / "1.png").write_text("mine")  # which is left as it is, and told
    (out / "c0.mkv.mp4").mkdir()


@pytest.mark.long
@pytest.mark.parametrize(
    ("existing", "wrong"),
    [
        ("skip", {"0.png", "1.png", "2.png", "3.png", "c0.mkv", "c1.mkv"}),
        ("keep", {"c0.mkv"}),  # an empty place for a clip's latents, but for the user's notes
        ("overwrite", {"1.png", "3.png", "c0.mkv", "c1.mkv"}),
    ],
)
def test_of_latents(existing: str, wrong: set[str], batch: Batch, sources: Path, tmp_path: Path) -> None:
    in_the_way_of_latents(tmp_path / "out")
    text = f'operation = "encode"\ninputs = "in"\noutput = "out"\nexisting = "{existing}"\n'
    said, happened = said_and_done(batch, text)
    assert said == happened
    assert failed(said) == wrong


@pytest.mark.long
@pytest.mark.parametrize("operation", ["decode", "roundtrip"])
@pytest.mark.parametrize("existing", ["skip", "overwrite"])
def test_of_pictures(operation: str, existing: str, batch: Batch, sources: Path, tmp_path: Path) -> None:
    inputs = "in"
    if operation == "decode":
        batch('operation = "encode"\ninputs = "in"\noutput = "latents"\n')
        inputs = "latents"
    in_the_way_of_pictures(tmp_path / "out")
    text = f'operation = "{operation}"\ninputs = "{inputs}"\noutput = "out"\nexisting = "{existing}"\n'
    said, happened = said_and_done(batch, text)
    assert said == happened
    assert {name.split(".")[0] for name in failed(said)} == {"0", "c0"}
