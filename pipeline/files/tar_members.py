"""What files a tar archive has, that anybody may have written, and where in it their bytes lie.

Nothing is unpacked here and no link is followed: only headers are read, so that a large archive is listed quickly.
Whether an archive ends as archives do is checked, so that one that was cut off, or is damaged in the middle, is told
from a whole one.
"""

from __future__ import annotations

import math
import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

from tvae.pipeline.errors import InputError
from tvae.pipeline.files.checked import is_name, open_regular

__all__ = ["PACKED_SUFFIXES", "SUFFIX", "Archive", "Member", "tar_members"]

SUFFIX = ".tar"
PACKED_SUFFIXES = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst", ".tzst")
"""Of archives whose members cannot be read one by one."""
_PACKED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd")
"""First bytes of gzip, bzip2, xz and zstd."""
_BEFORE_A_MEMBER = frozenset(
    {tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK}
)
_MOST_BEFORE = 1 << 20
"""Bytes of what stands before a member, such as its long name: `tarfile` reads that whole."""
_LATEST = 1 << 32
"""Seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Archive:
    """A tar file, and what tells it from another one in its place."""

    path: Path
    size: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class Member:
    """A file in an archive. problem: why it is of no use; None: it can be read."""

    archive: Archive
    name: str
    """As the archive has it, without a leading ``./``; parts are separated by ``/``."""
    offset: int
    """Of its bytes in the archive."""
    size: int
    """In bytes."""
    mtime_ns: int
    """When it was changed, as the archive says, in nanoseconds since 1970."""
    problem: str | None = None


def tar_members(path: Path) -> Iterator[Member]:
    """The members of an archive but for its folders, in its order.

    Raises InputError for what is no archive, or is a packed one, and, after the members that are whole, for one that is
    damaged or was cut off.
    """
    count = 0
    try:
        with open_regular(path) as raw:
            if raw.peek(6).startswith(_PACKED):
                raise InputError(f"{path}: is a packed archive, whose files cannot be read one by one; unpack it")
            opened, ends = os.fstat(raw.fileno()), list[tarfile.HeaderError]()
            size, archive = opened.st_size, Archive(path, opened.st_size, opened.st_mtime_ns)
            for info in _headers(raw, ends):
                if info.size < 0:  # by its extended header; what follows it would lie before it
                    raise InputError(f"{path}: is damaged after {count} files (a size of {info.size}); fetch it again")
                if info.isreg() and info.offset_data + info.size > size:
                    raise InputError(f"{path}: is cut off in its file {info.name!r}; fetch it again")
                if not info.isdir():
                    yield _member(archive, info)
                    count += 1
            # tarfile takes anything that is no header for the end; a real end is a block of zeros
            if not ends or type(ends[-1]).__name__ != "EOFHeaderError":
                raise InputError(f"{path}: is damaged or cut off after {count} files (no end mark); fetch it again")
    except OSError as error:
        raise InputError(f"{path}: cannot be read beyond {count} files ({error.strerror or error})") from error
    except (tarfile.TarError, ValueError, OverflowError, RecursionError) as error:
        raise InputError(f"{path}: is damaged after {count} files, or is no tar archive ({error})") from error


def _headers(raw: IO[bytes], ends: list[tarfile.HeaderError]) -> Iterator[tarfile.TarInfo]:
    """ends: gets what stood where no header did."""

    class Header(tarfile.TarInfo):
        @classmethod
        def frombuf(cls, buf: Any, encoding: str, errors: str) -> Self:
            found = super().frombuf(buf, encoding, errors)
            if found.size < 0 or (found.type in _BEFORE_A_MEMBER and found.size > _MOST_BEFORE):
                raise tarfile.HeaderError(f"a header says {found.size} bytes")
            return found

        @classmethod
        def fromtarfile(cls, tarfile_: tarfile.TarFile) -> Self:
            try:
                return super().fromtarfile(tarfile_)
            except tarfile.HeaderError as error:
                ends.append(error)
                raise

    with tarfile.open(fileobj=raw, mode="r:", tarinfo=Header, errors="surrogateescape") as opened:
        while (info := opened.next()) is not None:
            yield info
            opened.members.clear()  # type: ignore[attr-defined]  # which would otherwise grow


def _member(archive: Archive, info: tarfile.TarInfo) -> Member:
    name, seconds = info.name.removeprefix("./"), float(info.mtime)
    mtime_ns = int(min(max(seconds, 0), _LATEST) * 10**9) if math.isfinite(seconds) else 0
    return Member(archive, name, info.offset_data, info.size, mtime_ns, _problem(info, name))


def _problem(info: tarfile.TarInfo, name: str) -> str | None:
    if info.issym() or info.islnk():
        return "it is a link, which is not followed"
    if not info.isreg() or info.issparse():
        return "it is no plain file"
    if not all(is_name(part) for part in name.split("/")):
        return "its name leads out of the archive, or is no name on every system"
    return None
