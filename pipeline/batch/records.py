"""Where a step's records, its manifest and its report, are: beside its outputs. Those of outputs in a store are written
in a folder of this machine, in tvae's cache, and sent to the store."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tvae.kernels.cache import cache_folder
from tvae.pipeline.errors import OutputError, UsageError
from tvae.pipeline.files.atomic import write_error
from tvae.pipeline.files.staging import scratch_folder
from tvae.pipeline.stores import Store, StoreError, is_url, parse_url

__all__ = ["in_store", "records_of", "send_record"]


def records_of(output: str) -> Path:
    """The folder of this machine. output: see ``Step.output``."""
    if not is_url(output):
        return Path(output)
    return cache_folder("records") / hashlib.sha256(output.encode()).hexdigest()[:16]


@contextmanager
def in_store(output: str, name: str) -> Iterator[Path | None]:
    """A copy of a record beside outputs in a store; None where there is none. Raises UsageError where it cannot be
    read."""
    place = parse_url(output)
    store = Store(place.kind)
    with scratch_folder() as folder:
        copy = folder / name
        try:
            found = store.look(f"{place.key}/{name}")
            if found is not None and not found.is_folder:
                store.fetch(found, copy)
        except StoreError as error:
            raise UsageError(str(error)) from error
        except OSError as error:
            raise write_error(copy, error) from error
        yield copy if copy.exists() else None


def send_record(output: str, record: Path) -> None:
    """To the store, complete under its name or not at all; of outputs on this machine nothing. OutputError where it
    does not take it."""
    if not is_url(output):
        return
    place = parse_url(output)
    try:
        Store(place.kind).send(record, f"{place.key}/{record.name}")
    except StoreError as error:
        raise OutputError(f"{error}; it is in {record}") from error
