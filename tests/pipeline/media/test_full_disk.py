"""Every kind of file on a disk that fills up: the whole file, or an error and nothing."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from faults import ShortFiles

from tvae.pipeline.errors import InputError, OutputError
from tvae.pipeline.media import (
    Frame,
    PictureSpec,
    WriteOptions,
    copy_streams,
    open_parted_writer,
    open_reader,
    open_writer,
    packets,
)
from tvae.pipeline.media.formats import FORMATS, ImageFormat, VideoFormat
from tvae.pipeline.media.packet_file import PacketFile

IMAGES, FILMS = (
    [one.written[0] for one in FORMATS if isinstance(one, kind) and one.written] for kind in (ImageFormat, VideoFormat)
)
LIKE = PictureSpec(64, 48, Fraction(1, 1000), Fraction(25))
FRAMES = np.random.default_rng(0).integers(0, 256, (12, 6, 8, 3), dtype=np.uint8).repeat(8, 1).repeat(8, 2)

pytestmark = pytest.mark.skipif(os.name == "nt", reason="needs limits of processes")


def write(path: Path, sound: Path | None, parted: bool) -> None:
    image = path.suffix in IMAGES
    # with mbtree, x264 gives other bytes for the same frames now and then
    enc = {} if image or path.suffix == ".webm" else {"x264-params": "mbtree=0"}
    options = WriteOptions(audio=None if image else sound, fingerprint="a" * 64, enc=enc)
    with (open_parted_writer if parted else open_writer)(path, LIKE, options) as writer:
        for number, rgb in enumerate(FRAMES[: 1 if image else None]):
            writer.write(Frame(rgb, None if image else 40 * number, None if image else 40))
            if parted and number == 5:
                writer.end_part()  # type: ignore[union-attr]
        writer.commit()


def pixels(path: Path) -> list[bytes]:
    with open_reader(path) as reader:
        return [frame.rgb.tobytes() for frame in reader]


@pytest.mark.parametrize(
    ("suffix", "parted"), [*((suffix, False) for suffix in (*IMAGES, *FILMS)), (".mp4", True), (".mkv", True)]
)
def test_whole_or_absent(suffix: str, parted: bool, make_clip: Callable[..., Path], tmp_path: Path) -> None:
    sound = None if suffix == ".webm" else make_clip(tmp_path / "sound.mkv", audio=("aac", 0))
    write(tmp_path / f"known{suffix}", sound, parted)
    known, size = pixels(tmp_path / f"known{suffix}"), (tmp_path / f"known{suffix}").stat().st_size
    refused, limits = 0, [1, size // 3, size - 4096, size - 1, size + 4096]
    out = tmp_path / "out"
    for most in (n for n in limits if n > 0):
        path = out / f"a{suffix}"
        fault = ShortFiles(path, most)
        told = ""
        fault.strike(path)
        try:
            write(path, sound, parted)
        except OutputError as error:
            told = str(error)
        finally:
            fault.heal()
        if told:
            refused += 1
            assert f"cannot write {path}: " in told
            assert [file for file in out.iterdir() if file.suffix != ".parts"] == []  # complete parts stay
        else:
            assert pixels(path) == known
            assert [file.name for file in out.iterdir()] == [path.name]
            path.unlink()
    assert refused >= len([n for n in limits if 0 < n < size]) - 1


def test_streams_are_not_left_out_for_want_of_room(make_clip: Callable[..., Path], tmp_path: Path) -> None:
    source, out = make_clip(tmp_path / "sound.mkv", audio=("aac", 0)), tmp_path / "out"
    fault = ShortFiles(source, 2000)
    fault.strike(source)
    try:
        with pytest.raises(OutputError, match=r"cannot write .*streams\.mkv: File too large"):
            copy_streams(source, out / "streams", [])
    finally:
        fault.heal()
    assert list(out.iterdir()) == []


def test_streams_that_cannot_be_read_back(
    make_clip: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, out = make_clip(tmp_path / "sound.mkv", audio=("aac", 0)), tmp_path / "out"
    opened = packets.open_container

    def refusing(path: Path) -> object:
        if path.parent == out:
            raise InputError("it is gone")
        return opened(path)

    monkeypatch.setattr(packets, "open_container", refusing)
    with pytest.raises(OutputError, match=r"cannot write .*streams\.mkv: it is gone"):
        copy_streams(source, out / "streams", [])
    assert list(out.iterdir()) == []


def test_a_film_is_done_though_its_parts_cannot_be_removed(tmp_path: Path) -> None:
    with open_parted_writer(tmp_path / "a.mp4", LIKE) as writer:
        writer.write(Frame(FRAMES[0], 0, 40))
        writer.end_part()
        (writer.folder / "somebody's").mkdir()
        writer.commit()
    assert len(pixels(tmp_path / "a.mp4")) == 1


def test_what_cannot_be_written_at_the_end_leaves_nothing(tmp_path: Path) -> None:
    """Closing a file writes what is left of it, and fails where the disk is full."""
    part = PacketFile(tmp_path / "a.packets", "setup")
    whole = part._file

    class Full:
        def close(self) -> None:
            whole.close()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    part._file = Full()  # type: ignore[assignment]
    part.abort()
    assert [*tmp_path.iterdir()] == []
