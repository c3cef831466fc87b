"""What went into a sample: a file, or a member of an archive, and whether it is still the same."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path, PurePosixPath

from tvae.pipeline.caches.shards.record import OriginRecord
from tvae.pipeline.errors import InputError
from tvae.pipeline.files.checked import read_bytes
from tvae.pipeline.files.content_checksum import of_file
from tvae.pipeline.files.staging import pass_member
from tvae.pipeline.files.tar_members import Member
from tvae.pipeline.latents.meta import SourceRecord

__all__ = ["Origin"]

_LONGEST = 16 << 20
"""Bytes of a text."""


class _Digest:
    def __init__(self) -> None:
        self.hash = hashlib.sha256()

    def write(self, piece: bytes) -> None:
        self.hash.update(piece)


@dataclass(frozen=True)
class Origin:
    """A file, or a member of an archive. Its methods raise `OSError`, and InputError for an archive that has
    changed."""

    path: Path
    member: Member | None = None

    def status(self) -> SourceRecord:
        """Name, size and time."""
        if self.member is None:
            return SourceRecord.of(self.path)
        return SourceRecord(PurePosixPath(self.member.name).name, self.member.size, self.member.mtime_ns)

    def stands(self, record: OriginRecord) -> bool:
        """Is it what was recorded, or does it have the same bytes?"""
        status = self.status()
        return status == record.source or (status.size == record.source.size and self._checksum() == record.content)

    def read(self) -> tuple[bytes, OriginRecord]:
        """All of a text. InputError, too, for one that is too large."""
        status = self.status()
        if status.size > _LONGEST:
            raise InputError(f"the text {self.path} beside it has more than {_LONGEST >> 20} MiB")
        if self.member is None:
            content = read_bytes(self.path, _LONGEST)
        else:
            file = BytesIO()
            pass_member(self.member, file)
            content = file.getvalue()
        return content, OriginRecord(status, hashlib.sha256(content).hexdigest())

    def _checksum(self) -> str:
        if self.member is None:
            return of_file(self.path)
        digest = _Digest()
        pass_member(self.member, digest)
        return digest.hash.hexdigest()
