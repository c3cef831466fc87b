"""The order of a bucket's records, and the fingerprint that diffusion-pipe finds its cache valid by.

Both are what the library ``datasets`` makes of a table, so that it is asked, in the trainer's own environment: another
version of it may make others. The trainer then deletes the cache and makes its own.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from tvae.pipeline.caches.tables.rows import Bucket, Row
from tvae.pipeline.errors import UsageError

__all__ = ["Table", "in_order", "library_version", "table_of"]

_SIZING = "def sized(size_bucket):\n    return (\n                lambda example: {'size_bucket': size_bucket})"
"""How the trainer gives a table one more column. The fingerprint covers the function as it was compiled: its columns in
the source, and where it is defined."""
_MODULE, _NAME = "utils.dataset", "ARBucketDataset.cache_latents.<locals>.<lambda>"


class Table:
    """Of one bucket. rows: as the trainer numbers them."""

    def __init__(self, rows: list[Row], fingerprint: str) -> None:
        self.rows, self.fingerprint = rows, fingerprint


def library_version() -> str:
    """Of ``datasets``. Raises UsageError where it is not installed."""
    return str(_library().__version__)


def in_order(path: str, rows: Sequence[Row | None]) -> list[Row]:
    """Of a folder: those that are not left out, in the order that the trainer shuffles them into. path: as typed, but
    for dots and slashes that ``Path`` takes away."""
    datasets = _library()
    with _quiet(datasets):
        shuffled = datasets.Dataset.from_dict({"row": [*range(len(rows))]}).shuffle(seed=_seed(Path(path)))
    return [row for number in shuffled["row"] if (row := rows[number]) is not None]


def table_of(bucket: Bucket, rows: Sequence[Row]) -> Table:
    """rows: of the bucket's group, in the order of the folder."""
    datasets = _library()
    named = len(bucket.key) == 3
    columns: dict[str, list[Any]] = {
        "image_spec": [[None, row.name] for row in rows],
        "mask_file": [None for row in rows],
        "caption": [[*row.captions] for row in rows],
        "ar_bucket": [None if named else [*map(type(bucket.key[0]), bucket.key)] for row in rows],
        "size_bucket": [[*bucket.key] if named else None for row in rows],
        "is_video": [bucket.frames > 1 for row in rows],
    }
    with _quiet(datasets):
        table = _stored(datasets, datasets.Dataset.from_dict(columns))
        if not named:
            first = table.select(range(1))
            first._fingerprint = table._fingerprint  # that of the next table depends on this one and the function alone
            table._fingerprint = first.map(_sizing((*bucket.size, int(bucket.key[1]))))._fingerprint
        shuffled = table.shuffle(seed=_seed(bucket.name))
        places = {row.name: row for row in rows}
        order = [places[spec[1]] for spec in shuffled["image_spec"]]
        return Table(order, datasets.fingerprint.Hasher.hash([shuffled._fingerprint]))


def _stored(datasets: Any, table: Any) -> Any:
    """As the library gives it back once it has stored it, which changes its fingerprint."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            table.save_to_disk(folder)
            return datasets.load_from_disk(folder, keep_in_memory=True)
    except OSError as error:
        raise UsageError(
            f"cannot store a table in the folder for temporary files: {error.strerror or error}; make room there, or "
            "set TMPDIR to another folder"
        ) from error


def _sizing(size: tuple[int, int, int]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    scope: dict[str, Any] = {}
    exec(compile(_SIZING, "<table>", "exec", dont_inherit=True), scope)  # this module's flags would count, too
    like = scope["sized"](size)
    code: CodeType = like.__code__
    found = FunctionType(code.replace(co_qualname=_NAME), {"__name__": _MODULE}, like.__name__, None, like.__closure__)
    found.__qualname__, found.__module__ = _NAME, _MODULE
    return found


def _seed(said: object) -> int:
    return int(hashlib.md5(str(said).encode(), usedforsecurity=False).hexdigest(), 16) % int(1e9)


def _library() -> Any:
    try:
        import datasets
    except ImportError as error:
        raise UsageError(
            "diffusion-pipe takes a cache by a fingerprint of the library datasets, which is not installed here: run "
            f"tvae in diffusion-pipe's own environment ({error})"
        ) from error
    return datasets


@contextmanager
def _quiet(datasets: Any) -> Iterator[None]:
    """Without its progress bars."""
    were_off = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if not were_off:
            datasets.enable_progress_bars()
