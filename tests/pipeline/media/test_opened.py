"""A file that is opened once, for all that look at it before it is read, and for who reads it."""

from __future__ import annotations

import os
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from open_files import open_files
from PIL import Image

from tvae.pipeline.errors import InputError
from tvae.pipeline.media import open_reader
from tvae.pipeline.media.opened import IN_MEMORY, Opened
from tvae.pipeline.media.sandbox import Sandbox


def noise(path: Path, side: int) -> np.ndarray:
    levels = np.random.default_rng(side).integers(0, 256, (side, side, 3), dtype=np.uint8)
    Image.fromarray(levels).save(path)
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


@pytest.mark.long
@pytest.mark.parametrize("suffix", [".jpg", ".png", ".webp", ".bmp", ".tif", ".gif"])
@pytest.mark.parametrize("side", [40, 1300])
def test_a_picture_of_any_length_is_the_file_s(suffix: str, side: int, tmp_path: Path) -> None:
    path = tmp_path / f"a{suffix}"
    want = noise(path, side)
    content = path.read_bytes()
    with Opened(path) as opened:
        assert (opened.length, opened.file.read()) == (len(content), content)
        opened.file.seek(3)
        assert opened.file.read(5) == content[3:8]
        at_once = suffix in (".jpg", ".png", ".webp") and len(content) <= IN_MEMORY
        assert isinstance(opened.file, BytesIO) == at_once
    assert opened.file.closed
    for mode in ("auto", "off"):
        with Sandbox(mode) as sandbox, sandbox.open_reader(path) as reader:
            (frame,) = reader
            np.testing.assert_array_equal(frame.rgb, want)
    assert (len(content) > IN_MEMORY) == (side == 1300 and suffix in (".png", ".bmp", ".tif"))


def test_a_photo_is_opened_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noise(tmp_path / "a.jpg", 200)
    asked: list[str] = []
    real = os.open

    def watched(path: str | os.PathLike[str], *more: int) -> int:
        asked.append(os.fspath(path))
        return real(path, *more)

    def refused(path: Path, *_: object) -> None:
        raise AssertionError(f"{path} is opened by another way")

    with Sandbox("auto") as sandbox:
        sandbox.open_reader(tmp_path / "a.jpg").close()  # Pillow reads its own files when it is first asked
        monkeypatch.setattr(os, "open", watched)
        monkeypatch.setattr("builtins.open", refused)
        monkeypatch.setattr(Path, "open", refused)
        sandbox.open_reader(tmp_path / "a.jpg").close()
    assert asked == [str(tmp_path / "a.jpg")]
    with Sandbox("on") as elsewhere:
        assert elsewhere.takes(tmp_path / "a.jpg")
    assert len(asked) == 1


@pytest.mark.parametrize("suffix", [".jpg", ".bmp"])
def test_a_file_is_closed(suffix: str, tmp_path: Path) -> None:
    noise(tmp_path / f"a{suffix}", 40)
    before = open_files()
    for _ in range(20):
        with Opened(tmp_path / f"a{suffix}"):
            pass
    assert open_files() == before


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no such files")
def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.png")
    with pytest.raises(OSError, match="not a regular file"):
        Opened(tmp_path / "a.png")
    with pytest.raises(IsADirectoryError):
        Opened(tmp_path)
    with Sandbox("auto") as sandbox:
        for path, told in ((tmp_path / "a.png", "is a pipe"), (tmp_path, "is a folder"), (tmp_path / "b", "cannot be")):
            with pytest.raises(InputError, match=told):
                sandbox.open_reader(path)
            with pytest.raises(InputError, match=told):
                open_reader(path)


def test_a_file_that_is_empty_or_shrinks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.jpg").touch()
    with Sandbox("auto") as sandbox, pytest.raises(InputError, match="is empty"):
        sandbox.open_reader(tmp_path / "a.jpg")
    noise(tmp_path / "b.jpg", 300)
    length = (tmp_path / "b.jpg").stat().st_size
    os.truncate(tmp_path / "b.jpg", length // 2)
    with Opened(tmp_path / "b.jpg") as whole:
        os.truncate(tmp_path / "b.jpg", 1000)
        assert len(whole.file.read()) == length // 2  # it is as it was when it was opened
    real = os.read
    monkeypatch.setattr(os, "read", lambda descriptor, count: real(descriptor, min(count, 300)))  # a slow store
    with Opened(tmp_path / "b.jpg") as opened:
        assert opened.file.read() == (tmp_path / "b.jpg").read_bytes()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes are POSIX's")
def test_what_is_no_file_is_called_so(tmp_path: Path) -> None:
    """They have 0 bytes, and are not waited for."""
    os.mkfifo(tmp_path / "a.png")
    for path in (tmp_path / "a.png", Path(os.devnull)):
        with pytest.raises(InputError, match="is a pipe, a device or a socket"):
            open_reader(path)
