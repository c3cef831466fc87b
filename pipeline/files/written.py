"""What is known of a file from when it was written, so that nobody has to read it again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tvae.pipeline.files.content_checksum import of_file

__all__ = ["WrittenFile"]


@dataclass(frozen=True)
class WrittenFile:
    """Its state, by which it is known again, and the checksum of all its bytes."""

    size: int
    mtime_ns: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> WrittenFile:
        """Of a file that has just been written: it is read once more. `OSError` where it cannot be."""
        status = path.stat()
        return cls(status.st_size, status.st_mtime_ns, of_file(path))
