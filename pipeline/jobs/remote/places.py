"""Where results are sent from, and whether they can be."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain, count
from pathlib import Path

from tvae.kernels.cache import cache_folder
from tvae.pipeline.errors import UsageError
from tvae.pipeline.files.lock import OutputHeld, one_writer
from tvae.pipeline.files.own_folder import make_own_folder
from tvae.pipeline.stores import Place, Store, StoreError

__all__ = ["check_root", "check_written", "own_folder"]


def check_written(place: Place) -> None:
    """Raises UsageError for a kind of store that nothing can be written to."""
    if not place.kind.is_written:
        raise UsageError(f"cannot write to {place.shown}: web servers are only read; choose another output")


def check_root(store: Store, place: Place) -> None:
    """A bucket that is not there is known before any work. Who may not look may still write."""
    try:
        is_there = store.has_root(place)
    except StoreError as error:
        if error.denied:
            return
        raise UsageError(str(error)) from error
    if not is_there:
        root = Place(place.kind, place.kind.root(place.key))
        raise UsageError(f"cannot write to {place.shown}: {root.shown} does not exist")


@contextmanager
def own_folder(url: str, spill: str | None) -> Iterator[Path]:
    """A folder for a URL's results that no other run has: one in which something is left, or else a new one."""
    home = Path(spill).absolute() / ".tvae-uploads" if spill is not None else cache_folder("uploads").absolute()
    name = hashlib.sha256(url.encode()).hexdigest()[:16]
    left = sorted(home.glob(f"{name}-*"))
    for folder in chain(left, (home / f"{name}-{number}" for number in count())):
        with ExitStack() as stack:
            try:
                stack.enter_context(one_writer(folder, patience=0))
            except OutputHeld:
                continue
            make_own_folder(folder)
            yield folder
            return
