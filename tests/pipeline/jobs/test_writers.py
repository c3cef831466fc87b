"""Threads that write: as many as the preset says, and more where each picture takes a core a while to compress."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tvae.pipeline.jobs import Job, vaes
from tvae.pipeline.jobs.vaes import Vaes
from tvae.presets import load
from tvae.presets.text import text_of

Run = Callable[..., Any]


@pytest.mark.parametrize(
    ("operation", "cores", "threads"),
    [
        *[("encode", cores, 4) for cores in (1, 4, 16)],
        *[
            (operation, cores, threads)
            for operation in ("decode", "roundtrip")
            for cores, threads in ((1, 4), (2, 4), (6, 4), (8, 6), (10, 7), (11, 8), (16, 8), (128, 8))
        ],
    ],
)
def test_threads_by_cores(operation: Any, cores: int, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load("cpu").io_workers == 4
    monkeypatch.setattr(vaes, "usable_cores", lambda: cores)
    assert Vaes(Job(operation, ("a",), preset="cpu", device="cpu")).threads == threads


@pytest.mark.parametrize("operation", ["encode", "decode"])
def test_without_threads(operation: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vaes, "usable_cores", lambda: 64)
    preset = tmp_path / "one_by_one.toml"
    preset.write_text(text_of(replace(load("cpu"), io_workers=0)), "utf-8")
    assert Vaes(Job(operation, ("a",), preset=str(preset), device="cpu")).threads == 0


def test_pictures_are_compressed_at_once(
    run: Run, picture: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight writers of a decode, where the preset has four threads."""
    monkeypatch.setattr(vaes, "usable_cores", lambda: 16)
    pictures = [picture(f"in/{number:02d}.png", seed=number) for number in range(24)]
    run("encode", *pictures, output=tmp_path / "latents", preset="cpu")
    plain, together = Image.Image.save, threading.Barrier(8)

    def slow(*args: Any, **kwargs: Any) -> None:
        together.wait(20)  # for seven others
        plain(*args, **kwargs)

    monkeypatch.setattr(Image.Image, "save", slow)
    done, _ = run("decode", tmp_path / "latents", output=tmp_path / "pictures", preset="cpu")
    assert (done.done, done.failed) == (24, 0)
