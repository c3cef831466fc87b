from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tvae.pipeline.errors import InputError, UsageError
from tvae.pipeline.media import Frame, PictureSpec, WriteOptions, check_write_options, open_writer
from tvae.pipeline.media.formats import WRITTEN_SUFFIXES

LIKE = PictureSpec(48, 32)
LOSSY = {".jpg": 8, ".jpeg": 8, ".webp": 12}
"""Levels that a flat colour may be off by; all other formats are exact."""


@pytest.mark.parametrize("suffix", [*WRITTEN_SUFFIXES["image"], ".PNG"])
def test_formats(suffix: str, quarters: np.ndarray, tmp_path: Path) -> None:
    path, tolerance = tmp_path / "new" / f"a{suffix}", LOSSY.get(suffix, 0)
    with open_writer(path, LIKE) as writer:
        writer.write(Frame(quarters))
        assert not path.exists()
        writer.commit()
    with Image.open(path) as image:
        got = np.asarray(image)
    inside = np.s_[4:12, 4:20]  # of the red quarter: lossy formats blur its edges
    assert np.abs(got[inside].astype(int) - quarters[inside]).max() <= tolerance
    assert tolerance or np.array_equal(got, quarters)
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_nothing_is_left_without_commit(quarters: np.ndarray, tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(b"before")
    with open_writer(path, LIKE) as writer:
        writer.write(Frame(quarters))
    assert path.read_bytes() == b"before"
    with pytest.raises(InputError, match="no frame"), open_writer(path, LIKE) as writer:
        writer.commit()
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.png"]


def test_settings(quarters: np.ndarray, tmp_path: Path) -> None:
    with open_writer(tmp_path / "a.webp", LIKE, WriteOptions(enc={"lossless": "1"})) as writer:
        writer.write(Frame(quarters))
        writer.commit()
    with Image.open(tmp_path / "a.webp") as image:
        assert np.array_equal(np.asarray(image), quarters)
    check_write_options(".jpg", WriteOptions(enc={"quality": "90", "subsampling": "2"}))
    for wrong in ({"quality": "200"}, {"lossless": "1"}, {"quality": "high"}):
        with pytest.raises(UsageError, match=r"is not a setting of \.jpg images; there are: quality=1\.\.100"):
            check_write_options(".jpg", WriteOptions(enc=wrong))
    with pytest.raises(UsageError, match="--pix-fmt is for videos"):
        check_write_options(".png", WriteOptions(pix_fmt="rgb24"))
    with pytest.raises(UsageError, match=r"cannot write '\.xyz' files"):
        open_writer(tmp_path / "a.xyz", LIKE)


def test_png_is_fast_and_may_be_small(tmp_path: Path) -> None:
    """A photo's texture: level 1 unless another is asked for."""
    rng = np.random.default_rng(0)
    pixels = np.repeat(rng.integers(0, 40, (LIKE.height, LIKE.width // 2, 3), dtype=np.uint8), 2, axis=1)
    like, sizes = PictureSpec(LIKE.width, LIKE.height), {}
    for level in (None, 1, 6):
        enc = {} if level is None else {"compress_level": str(level)}
        with open_writer(tmp_path / f"{level}.png", like, WriteOptions(enc=enc)) as writer:
            writer.write(Frame(pixels))
            writer.commit()
        sizes[level] = (tmp_path / f"{level}.png").stat().st_size
    assert (tmp_path / "None.png").read_bytes() == (tmp_path / "1.png").read_bytes()
    assert sizes[6] < sizes[1]


def test_wrong_frames_are_the_programmers_error(quarters: np.ndarray, tmp_path: Path) -> None:
    with open_writer(tmp_path / "a.png", LIKE) as writer:
        with pytest.raises(ValueError, match="expected uint8"):
            writer.write(Frame(quarters[:-1]))
        writer.write(Frame(quarters))
        with pytest.raises(ValueError, match="takes one frame"):
            writer.write(Frame(quarters))
