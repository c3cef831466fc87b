"""Folders that a run makes before it is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path

__all__ = ["gone_if_empty"]


@contextmanager
def gone_if_empty(folder: Path) -> Iterator[None]:
    """Where the block fails, this folder and those above it that were not there before go again, if they are empty."""
    new = [*takewhile(lambda path: not path.exists(), (folder, *folder.parents))]
    try:
        yield
    except BaseException:
        for path in new:
            with suppress(OSError):  # there is something in it
                path.rmdir()
        raise
