"""What goes wrong in Pillow and FFmpeg over a damaged image: told as one line, and nothing printed."""

from __future__ import annotations

import contextlib
import logging
import struct
import threading
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path

import av.error
from PIL import Image

from tvae.pipeline.errors import InputError
from tvae.pipeline.media.container import reason

__all__ = ["DAMAGE", "blaming", "damaged", "quiet"]

# What Pillow and FFmpeg raise on damaged files
DAMAGE = (
    OSError,
    ValueError,
    SyntaxError,
    TypeError,
    LookupError,
    ArithmeticError,
    EOFError,
    RuntimeError,
    struct.error,
    zlib.error,
    av.error.FFmpegError,
    Image.DecompressionBombError,  # of a picture in the file that is larger than its header said
)

# without any handler, logging prints Pillow's complaints about damaged files to stderr
logging.getLogger("PIL").addHandler(logging.NullHandler())


class _Quiet:
    """Pillow warns of damaged metadata by Python warnings, and refuses large pictures by a limit of its own, which is
    smaller than what can be computed here; ours is asked instead. Both settings are the whole process's: who comes
    first changes them, and who goes last puts them back, so that threads decode at the same time."""

    def __init__(self) -> None:
        self._lock, self._inside = threading.Lock(), 0
        self._before: contextlib.ExitStack | None = None

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._before = contextlib.ExitStack()
                self._before.enter_context(warnings.catch_warnings())
                warnings.simplefilter("ignore")
                limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
                self._before.callback(setattr, Image, "MAX_IMAGE_PIXELS", limit)
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0 and self._before is not None:
                self._before.close()
                self._before = None


_quiet = _Quiet()


def quiet() -> contextlib.AbstractContextManager[None]:
    """Around calls of Pillow's, in any number of threads."""
    return _quiet


@contextlib.contextmanager
def blaming(path: Path) -> Iterator[None]:
    """Around calls of Pillow's and FFmpeg's alone: the like of what they raise on damaged files is our mistake where it
    is raised by ourselves."""
    try:
        with quiet():
            yield
    except DAMAGE as error:
        raise damaged(path, error) from error


def damaged(path: Path, error: Exception) -> InputError:
    return InputError(f"{path}: the image is damaged ({reason(error)}); fetch it again or convert it to PNG")
