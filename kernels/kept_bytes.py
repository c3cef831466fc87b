"""Bytes in a file of the cache, after their sha256: complete, or as if they were not there."""

from __future__ import annotations

import hashlib
import os
import uuid
from contextlib import suppress
from pathlib import Path

__all__ = ["keep", "kept"]

_DIGEST = hashlib.sha256().digest_size
_MOST = 1 << 26
"""Bytes of a file that is read."""


def kept(path: Path) -> bytes | None:
    """What ``keep`` put there. None where it is not, damaged, or larger than anything that is kept."""
    try:
        with open(path, "rb") as file:
            found = file.read(_MOST + 1)
    except OSError:
        return None
    if len(found) > _MOST:
        return None
    whole = found[_DIGEST:] and hashlib.sha256(found[_DIGEST:]).digest() == found[:_DIGEST]
    return found[_DIGEST:] if whole else None


def keep(path: Path, made: bytes) -> None:
    """Under its name only when complete. A folder that cannot be written costs the next process some time, no more."""
    part = path.with_name(f"{uuid.uuid4().hex}.part")
    try:
        with open(part, "xb") as file:
            file.write(hashlib.sha256(made).digest() + made)
            file.flush()
            os.fsync(file.fileno())  # or a power cut may leave zeros under the name
        os.replace(part, path)
    except OSError:
        with suppress(OSError):
            part.unlink()
