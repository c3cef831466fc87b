"""A part is made complete while the next is written: what is told of it, and when."""

from __future__ import annotations

import errno
import threading
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from tvae.pipeline.errors import OutputError
from tvae.pipeline.media import Frame, PartedVideoWriter, PictureSpec, open_parted_writer
from tvae.pipeline.media.frame_encoder import FrameEncoder

LIKE = PictureSpec(64, 64, Fraction(1, 25), Fraction(25))
RGB = np.zeros((64, 64, 3), np.uint8)


def ten(writer: PartedVideoWriter, first: int) -> None:
    for n in range(first, first + 10):
        writer.write(Frame(RGB, n, 1))


def test_the_next_part_does_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finish, go_on, told = FrameEncoder.finish, threading.Event(), list[int]()

    def slow(self: FrameEncoder) -> object:
        assert go_on.wait(60)
        return finish(self)

    monkeypatch.setattr(FrameEncoder, "finish", slow)
    with open_parted_writer(tmp_path / "a.mp4", LIKE) as writer:
        ten(writer, 0)
        writer.end_part(lambda: told.append(writer.parts), beside=True)
        ten(writer, 10)
        assert (writer.parts, told) == (0, [])
        go_on.set()
        writer.end_part(lambda: told.append(writer.parts), beside=True)
        assert told[0] == 1
        ten(writer, 20)
        writer.commit()
        assert (writer.parts, told) == (3, [1, 2])


@pytest.mark.parametrize("beside", [False, True])
def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beside: bool) -> None:
    """The part is none, and what should follow is not done; the one before stays."""
    finish, told = FrameEncoder.finish, list[str]()

    def full(_self: FrameEncoder) -> object:
        raise OSError(errno.ENOSPC, "no space left on device")

    with pytest.raises(OutputError, match="no space left"), open_parted_writer(tmp_path / "a.mp4", LIKE) as writer:  # noqa: PT012
        ten(writer, 0)
        writer.end_part(lambda: told.append("first"), beside=beside)
        ten(writer, 10)
        writer._finishing.wait()
        monkeypatch.setattr(FrameEncoder, "finish", full)
        writer.end_part(lambda: told.append("second"), beside=beside)
        ten(writer, 20)
        monkeypatch.setattr(FrameEncoder, "finish", finish)
        writer.end_part(beside=beside)
    assert told == ["first"]
    assert [path.name for path in writer.folder.iterdir()] == ["000000.packets"]
    assert not any(thread.name == "tvae-finish-part" for thread in threading.enumerate())


def test_what_follows_fails(tmp_path: Path) -> None:
    def fails() -> None:
        raise OutputError("the checkpoint cannot be written")

    with pytest.raises(OutputError, match="checkpoint"), open_parted_writer(tmp_path / "a.mp4", LIKE) as writer:  # noqa: PT012
        ten(writer, 0)
        writer.end_part(fails, beside=True)
        writer.commit()
    assert [path.name for path in writer.folder.iterdir()] == ["000000.packets"]
