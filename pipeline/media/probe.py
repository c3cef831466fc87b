"""What a file is, by its content, and the Reader for it."""

from __future__ import annotations

import stat
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

from tvae.pipeline.errors import InputError
from tvae.pipeline.media.decoders import Decoder
from tvae.pipeline.media.early_end import early_end
from tvae.pipeline.media.image_read import ImageReader, is_image
from tvae.pipeline.media.opened import Opened
from tvae.pipeline.media.room import MAX_PIXELS
from tvae.pipeline.media.spec import MediaInfo, Reader
from tvae.pipeline.media.truncation import broken_animation, is_cut_animation, lacks_its_end, missing_bytes
from tvae.pipeline.media.video_read import VideoReader

__all__ = ["check_file", "count_frames", "open_reader", "probe"]


def probe(path: str | Path, max_pixels: int = MAX_PIXELS) -> MediaInfo:
    """Describe an image or a video: an image is decoded whole, of a video the first frame.

    Raises InputError for what cannot be read: empty or cut-off files, text, sound without a picture, images of more
    than ``max_pixels``, ...
    """
    with open_reader(path, max_pixels) as reader:
        return reader.info


def count_frames(path: str | Path, max_pixels: int = MAX_PIXELS) -> int:
    """How many frames a reader gives. Raises InputError as reading them does."""
    with open_reader(path, max_pixels) as reader:
        return reader.count()


def open_reader(
    path: str | Path,
    max_pixels: int = MAX_PIXELS,
    hold: Callable[[int], None] | None = None,
    memory: int | None = None,
    on_size: Callable[[int], None] = lambda _: None,
    opened: Opened | None = None,
    *,
    alpha: bool = False,
    quick: bool = False,
    decoder: Decoder | None = None,
) -> Reader:
    """Open an image or a video for reading frames, by its content. Raises InputError for what cannot be read, pictures
    of more than ``max_pixels`` among it, and those that would take more than ``memory`` bytes to read (None: any
    number). hold: is told how many bytes reading an image takes, before they are taken; on_size: how many pixels a
    frame of a video has. opened: the file, where the caller has it open. alpha: of an image that Pillow reads and that
    has alpha, it comes with the colours; see ``Frame``. quick: how a video's colours are converted, see ``ToRgb``.
    decoder: of images whose colours are taken as
    stored, see ``decoders``; None: they are converted from their ICC profile."""
    path = Path(path).absolute()
    with nullcontext(opened) if opened is not None else _opened(path) as file:
        if _is_image(file, max_pixels):
            return ImageReader(file, max_pixels, hold, memory, alpha=alpha, decoder=decoder)
        early = _early_end(file)
        _check_animation(file)
    reader = VideoReader(path, max_pixels, memory, on_size, quick=quick)
    if early is not None:
        reader.warnings.append(f"{early}; its end may be missing")
    return reader


def check_file(path: Path, max_pixels: int = MAX_PIXELS) -> bool:
    """Whether an absolute path is an image for Pillow, by its first bytes. Raises InputError for what is seen without
    decoding: a folder, an empty file, one that is cut off, an image of more than ``max_pixels``."""
    with _opened(path) as file:
        return _is_image(file, max_pixels)


def _opened(path: Path) -> Opened:
    try:
        if path.is_dir():
            raise InputError(f"{path}: is a folder, not an image or a video; name the files in it")
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise InputError(f"{path}: is a pipe, a device or a socket; save what it gives to a file first")
        if status.st_size == 0:
            raise _empty(path)
        return Opened(path)
    except OSError as error:
        raise _unreadable(path, error) from error


def _is_image(opened: Opened, max_pixels: int) -> bool:
    path = opened.path
    if opened.length == 0:
        raise _empty(path)
    try:
        missing, endless = missing_bytes(opened), lacks_its_end(opened)
    except OSError as error:
        raise _unreadable(path, error) from error
    if missing:
        raise InputError(f"{path}: is cut off, its last {missing} bytes are missing; fetch it again")
    if endless:
        raise InputError(f"{path}: is cut off, the end of the picture is missing; fetch it again")
    if is_image(opened, max_pixels):
        return True
    if is_cut_animation(opened):
        raise InputError(f"{path}: is cut off, the end of the animation is missing; fetch it again")
    return False


def _check_animation(opened: Opened) -> None:
    """It reads the whole file."""
    try:
        broken = broken_animation(opened)
    except OSError as error:
        raise _unreadable(opened.path, error) from error
    if broken is not None:
        raise InputError(f"{opened.path}: the animation is damaged ({broken}); fetch it again or convert it to a video")


def _early_end(opened: Opened) -> str | None:
    try:
        return early_end(opened)
    except OSError as error:
        raise _unreadable(opened.path, error) from error


def _empty(path: Path) -> InputError:
    return InputError(f"{path}: is empty (0 bytes); fetch it again")


def _unreadable(path: Path, error: OSError) -> InputError:
    return InputError(f"{path}: cannot be read ({error.strerror}); check the name and your rights to it")
