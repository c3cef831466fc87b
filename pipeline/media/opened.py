"""A file that is looked at several times before it is read, opened once.

At each call of the system another thread may take the interpreter's lock, and many threads read a folder of photos.
"""

from __future__ import annotations

import os
from io import BufferedReader, BytesIO, FileIO
from pathlib import Path
from typing import BinaryIO, Self

from tvae.pipeline.files.checked import regular_descriptor

__all__ = ["Opened"]

IN_MEMORY = 4 << 20
"""Bytes of a picture's file up to which it is read at once."""
_HEAD = 1 << 16
_PICTURES = (b"\xff\xd8", b"\x89PNG\r\n\x1a\n", b"RIFF")
"""How files of JPEG, PNG and WebP begin. Others are not compressed, or are clips, of which little is looked at."""


class Opened:
    """A regular file, or a link to one. ``file``: to be sought before it is read; ``length``: in bytes."""

    def __init__(self, path: Path) -> None:
        """`OSError` where it cannot be opened, as ``open_regular``."""
        descriptor, status = regular_descriptor(path)
        self.path, self.length = path, status.st_size
        try:
            head = os.read(descriptor, _HEAD)
            whole = self.length <= IN_MEMORY and head.startswith(_PICTURES)
            if whole:
                self.file: BinaryIO = BytesIO(head + _rest(descriptor, self.length - len(head)))
            else:
                os.lseek(descriptor, 0, os.SEEK_SET)
                self.file = BufferedReader(FileIO(descriptor))
        except BaseException:
            os.close(descriptor)
            raise
        if whole:
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()


def _rest(descriptor: int, left: int) -> bytes:
    """Up to so many bytes: the file may have become shorter."""
    parts = list[bytes]()
    while left > 0 and (part := os.read(descriptor, left)):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)
