"""The same frames and options give the same film, byte for byte, whatever memory held before."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from tvae.pipeline.media import Frame, PictureSpec, WriteOptions, open_parted_writer, open_writer

SIZES = [(64, 64), (80, 48), (96, 64), (112, 96), (144, 80), (176, 144), (200, 120), (256, 64), (304, 112), (320, 180)]


def film(path: Path, width: int, height: int, parted: bool, used: int) -> bytes:
    """Noise that moves, so that the encoder's lookahead has something to follow. used: what memory is filled with."""
    noise = np.random.default_rng(0).integers(0, 60, (height, width + 24, 3), dtype=np.uint8)
    like = PictureSpec(width, height, Fraction(1, 25), Fraction(25))
    memory = [np.full(size << 10, used, np.uint8) for size in range(1, 200, 7)]
    del memory
    with (open_parted_writer if parted else open_writer)(path, like, WriteOptions()) as writer:
        for number in range(24):
            writer.write(Frame(np.ascontiguousarray(noise[:, number : number + width]) * 3, number, 1))
        writer.commit()
    return path.read_bytes()


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_two_films(width: int, height: int, tmp_path: Path) -> None:
    parted = bool(width % 32)
    one, *others = (film(tmp_path / f"{used}.mp4", width, height, parted, used) for used in (0, 85, 255))
    assert all(other == one for other in others)


@pytest.mark.parametrize("suffix", [".mkv", ".mov", ".webm"])
@pytest.mark.parametrize("parted", [False, True])
def test_other_containers(suffix: str, parted: bool, tmp_path: Path) -> None:
    one, other = (film(tmp_path / f"{used}{suffix}", 64, 64, parted, used) for used in (0, 255))
    assert other == one
