"""What the engine says meanwhile: strips that were put back, levels and recordings that were not to be had."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["heard"]


class _Ear(logging.Handler):
    def __init__(self, said: Counter[str]) -> None:
        super().__init__(logging.INFO)
        self._said = said

    def emit(self, record: logging.LogRecord) -> None:
        self._said[record.getMessage()] += 1


@contextmanager
def heard() -> Iterator[list[str]]:
    """A list that is filled at the end of the block: each message once, with how often it was said."""
    said: Counter[str] = Counter()
    told: list[str] = []
    log, ear = logging.getLogger("tvae"), _Ear(said)
    before = log.level
    log.addHandler(ear)
    log.setLevel(logging.INFO)
    try:
        yield told
    finally:
        log.removeHandler(ear)
        log.setLevel(before)
        told += [f"{count}x {message}" for message, count in said.items()]
