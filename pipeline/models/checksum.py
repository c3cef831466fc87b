"""sha256 of weight files, remembered: hashing gigabytes costs seconds, and every run needs it.

A digest is kept under the file's resolved path, size and mtime in the user's cache folder, one small file each, safe
to delete at any time. A file changed within the last seconds is not remembered: a second change could hide behind
the same mtime.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from pathlib import Path

from tvae.pipeline.files.atomic import replacing

SETTLED_NS = 2_000_000_000
"""The coarsest mtime of file systems in use is FAT's: two seconds."""


def sha256_of_files(files: Sequence[Path]) -> str:
    """Hex digest of one file; of several, the digest of their digests in the order of their names."""
    digests = [sha256_of_file(path) for path in sorted(files, key=lambda path: path.name)]
    if len(digests) == 1:
        return digests[0]
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def sha256_of_file(path: Path) -> str:
    """Hex digest, from the cache if the file has not changed since. `OSError` when the file cannot be read."""
    path = path.resolve()
    status = path.stat()
    state = {"path": str(path), "size": status.st_size, "mtime_ns": status.st_mtime_ns}
    entry = _cache_folder() / f"{hashlib.sha256(str(path).encode()).hexdigest()[:32]}.json"
    known = _read(entry)
    if all(known.get(key) == value for key, value in state.items()) and isinstance(known.get("sha256"), str):
        return str(known["sha256"])
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if time.time_ns() - status.st_mtime_ns > SETTLED_NS:
        _write(entry, {**state, "sha256": digest})
    return digest


def _cache_folder() -> Path:
    import platformdirs

    return Path(platformdirs.user_cache_dir("tvae", appauthor=False)) / "sha256"


def _read(entry: Path) -> dict[str, object]:
    try:
        content = json.loads(entry.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # no entry, or a damaged one: the digest is computed again
        return {}
    return content if isinstance(content, dict) else {}


def _write(entry: Path, content: dict[str, object]) -> None:
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        with replacing(entry) as temporary:
            temporary.write_text(json.dumps(content), encoding="utf-8")
    except OSError:  # a cache that cannot be written costs time, nothing else
        return
