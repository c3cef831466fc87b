"""Reading files that anybody may have written: regular files alone, of bounded size; JSON of bounded depth and numbers.

Opening never waits: a fifo or a device in the place of a file is refused. JSON comes out as plain values that the rest
may handle without care: at most `DEEPEST` levels, whole numbers of 64 bits, finite floats, texts that a file name or a
terminal can take. What a value means is for the typed records to check (``record``).
"""

from __future__ import annotations

import codecs
import errno
import json
import math
import os
import stat
from io import BufferedReader, FileIO
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

__all__ = [
    *("DEEPEST", "is_name", "is_refused", "open_regular", "parse_json", "read_bytes", "read_json"),
    *("regular_descriptor", "says_utf16", "text_in"),
]

DEEPEST = 32
"""Most levels of lists and objects inside one another."""
LARGEST = 1 << 64
"""Whole numbers are below it, and above its negative."""
LONGEST_NAME = 255
"""In bytes."""
JSON_BYTES = 64 << 20
"""Most of a JSON file."""
_PART = 1 << 16
"""Bytes that are read at a time."""


_REFUSED = ("EACCES", "EPERM", "EIO", "ESTALE", "ETIMEDOUT", "EMFILE", "ENFILE", "ENOTCONN", "EHOSTDOWN", "EREMOTEIO")
"""Names of errors that say nothing of a file but that it is not to be had now."""


def is_refused(error: BaseException | None) -> bool:
    """Does an error say that a file may not, or cannot, be read, and nothing of what is in it?"""
    return isinstance(error, OSError) and errno.errorcode.get(error.errno or 0) in _REFUSED


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file, or a link to one, for reading. `OSError` for anything else; it never waits."""
    descriptor, _ = regular_descriptor(path)
    try:
        return BufferedReader(FileIO(descriptor))  # ``open`` would ask whether it is a terminal
    except BaseException:
        os.close(descriptor)
        raise


def regular_descriptor(path: Path) -> tuple[int, os.stat_result]:
    """The same: its descriptor, which the caller closes, and what the system says of the file."""
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
    descriptor = os.open(path, flags)
    try:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise OSError(errno.EISDIR, "it is a folder", str(path))
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        return descriptor, status
    except BaseException:
        os.close(descriptor)
        raise


def read_bytes(path: Path, most: int) -> bytes:
    """All of a regular file. `OSError` where it cannot be read, `ValueError` for one of more than `most` bytes.

    To ask for `most` at once would take that much memory for any file.
    """
    content = bytearray()
    with open_regular(path) as file:
        while len(content) <= most and (part := file.read(min(_PART, most + 1 - len(content)))):
            content += part
    if len(content) > most:
        raise ValueError(f"it has more than {most} bytes")
    return bytes(content)


def read_json(path: Path, most: int = JSON_BYTES) -> Any:
    """What a JSON file holds. `OSError`, or `ValueError` as `parse_json` and `read_bytes`."""
    return parse_json(read_bytes(path, most))


def says_utf16(data: bytes) -> bool:
    """Does a text begin with the mark of UTF-16? Windows PowerShell writes one so, by ``>``."""
    return data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))


def text_in(data: bytes) -> str:
    """A text that people write: UTF-8, with its mark or without, or UTF-16 with its mark. `ValueError` for all else."""
    try:
        return data.decode("utf-16" if says_utf16(data) else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is not valid in {error.encoding}; save it as UTF-8") from error


def is_name(text: str) -> bool:
    """Whether a text out of a file may be used as a file's name, on any system: it leads nowhere else. One that this
    locale cannot say may not."""
    try:
        return (
            text not in ("", ".", "..")
            and "\0" not in text
            and text == PurePosixPath(text).name == PureWindowsPath(text).name
            and len(os.fsencode(text)) <= LONGEST_NAME
        )
    except UnicodeEncodeError:
        return False


def parse_json(text: str | bytes) -> Any:
    """The value that a text stands for, within the bounds of this module. `ValueError` for all else."""
    try:
        value = json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise ValueError(f"not JSON of at most {DEEPEST} levels") from None
    _check(value)
    return value


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def _check(value: Any) -> None:
    """`ValueError` for what is too deep, too large or not finite. Level by level: it cannot recurse."""
    level = [value]
    for _ in range(DEEPEST + 1):
        inner: list[Any] = []
        for one in level:
            kind = type(one)
            if kind is str:
                _check_text(one)
            elif kind is int:
                if not -LARGEST < one < LARGEST:
                    raise ValueError("a number of more than 64 bits")
            elif kind is float:
                if not math.isfinite(one):
                    raise ValueError("a number that is not finite")
            elif kind is list:
                inner += one
            elif kind is dict:
                inner += one
                inner += one.values()
        if not inner:
            return
        level = inner
    raise ValueError(f"not JSON of at most {DEEPEST} levels")


def _check_text(text: str) -> None:
    """Names of files that are not UTF-8 have lone surrogates of U+DC80 to U+DCFF; no other text has any."""
    if not text.isascii() and any("\ud800" <= c <= "\udc7f" or "\udd00" <= c <= "\udfff" for c in text):
        raise ValueError("a text that is not Unicode")
    if "\0" in text:
        raise ValueError("a text with a zero byte")
