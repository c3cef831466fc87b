"""What steps did on this machine, for dry runs of jobs that have done nothing yet. Kept in the user's cache."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from tvae.kernels.cache import cache_folder, is_private
from tvae.pipeline.files.atomic import replacing
from tvae.pipeline.files.checked import read_json
from tvae.pipeline.jobs.job import Job

__all__ = ["Rate", "rate_of", "remember"]

_log = logging.getLogger("tvae")
_APART = {
    *("inputs", "output", "listed", "naming", "recursive", "existing"),
    *("dry_run", "exact", "claim", "sharers", "recorded"),
}
"""Fields of a job that do not matter for how fast it is, or how large its outputs are."""
_MOST = 256
"""Steps that are remembered: the last ones."""
_SHORT = 1.0
"""Seconds of a step that tells nothing: most of it was the start."""


@dataclass(frozen=True)
class Rate:
    """bytes_per_second: of sources. written_for_read: bytes of outputs for each byte of a source; None: not known."""

    bytes_per_second: float
    written_for_read: float | None


def rate_of(job: Job) -> Rate | None:
    """Of the last step like this one; None where there was none."""
    found = _all().get(_key(job))
    return None if found is None else Rate(**found)


def remember(job: Job, read_bytes: int, seconds: float, written_for_read: float | None) -> None:
    """That such a step took so long. What cannot be kept is not."""
    if seconds < _SHORT or read_bytes <= 0:
        return
    rates, key = _all(), _key(job)
    rates.pop(key, None)
    rates[key] = vars(Rate(read_bytes / seconds, written_for_read))
    kept = dict([*rates.items()][-_MOST:])
    path = _path()
    try:
        if is_private(path.parent):
            with replacing(path) as temporary:
                temporary.write_text(json.dumps(kept, indent=1), encoding="utf-8")
    except OSError as error:
        _log.info("'%s' is not written: %s", path, error)


def _path() -> Path:
    return cache_folder("rates") / "rates.json"


def _all() -> dict[str, Any]:
    """Whatever is not as it was written is left out."""
    try:
        found = read_json(_path())
    except (OSError, ValueError):
        return {}
    return {key: rate for key, rate in found.items() if _is_rate(rate)} if isinstance(found, Mapping) else {}


def _is_rate(found: Any) -> bool:
    if not isinstance(found, Mapping) or {*found} != {*Rate.__annotations__}:
        return False
    rate, written = found["bytes_per_second"], found["written_for_read"]
    return isinstance(rate, float) and rate > 0 and (written is None or isinstance(written, int | float))


def _key(job: Job) -> str:
    said = repr([getattr(job, field.name) for field in fields(job) if field.name not in _APART])
    return hashlib.sha256(said.encode("utf-8", "surrogateescape")).hexdigest()[:32]
