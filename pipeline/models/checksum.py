"""sha256 of weight files, remembered: hashing gigabytes costs seconds, and every run needs it.

A digest is kept under the file's resolved path, size and times of change in the user's cache folder, one small file
each, safe to delete at any time. A file changed within the last seconds is not remembered: a second change could hide
behind the same time.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tvae.kernels.cache import SETTLED_NS, cache_folder, is_private
from tvae.pipeline.files.atomic import replacing
from tvae.pipeline.files.checked import open_regular, read_json

MOST_BYTES = 1 << 20
"""Of an entry."""


def sha256_of_files(files: Sequence[Path]) -> str:
    """Hex digest of one file; of several, the digest of their digests in the order of their names."""
    digests = [sha256_of_file(path) for path in sorted(files, key=lambda path: path.name)]
    if len(digests) == 1:
        return digests[0]
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def sha256_of_file(path: Path) -> str:
    """Hex digest, from the cache if the file has not changed since. `OSError` when the file cannot be read."""

    def digest() -> str:
        with open_regular(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    return remembered(path, "", digest)


def remembered(path: Path, what: str, compute: Callable[[], str]) -> str:
    """A text about a file's content, from the cache if the file has not changed since. what: tells several apart.
    `OSError` when the file cannot be read."""
    path = path.resolve()
    status = path.stat()
    state = {"path": str(path), "size": status.st_size, "mtime_ns": status.st_mtime_ns, "ctime_ns": status.st_ctime_ns}
    folder = _cache_folder()
    kept = is_private(folder)
    entry = folder / f"{hashlib.sha256(os.fsencode(path)).hexdigest()[:32]}{what}.json"
    if kept and (known := _read(entry, state)) is not None:
        return known
    digest = compute()
    if kept and time.time_ns() - status.st_mtime_ns > SETTLED_NS:
        _write(entry, {**state, "sha256": digest, "check": _check(state, digest)})
    return digest


def _cache_folder() -> Path:
    return cache_folder("sha256")


def _check(state: dict[str, object], digest: str) -> str:
    """Tells a damaged entry."""
    return hashlib.sha256(json.dumps([state, digest], sort_keys=True).encode()).hexdigest()


def _read(entry: Path, state: dict[str, object]) -> str | None:
    """The digest of a file in this state. None: there is no entry, or it is damaged or of another state."""
    try:
        known = read_json(entry, MOST_BYTES)
        digest = known["sha256"]
        return digest if known["check"] == _check(state, digest) else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _write(entry: Path, content: dict[str, object]) -> None:
    try:
        with replacing(entry) as temporary:
            temporary.write_text(json.dumps(content), encoding="utf-8")
    except OSError:  # a cache that cannot be written costs time, nothing else
        return
