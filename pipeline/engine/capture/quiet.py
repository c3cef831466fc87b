"""Silences warnings and logs of PyTorch in one thread; other threads keep theirs.

Python's list of warning filters and its loggers are global. So what is added there checks the thread first.
"""

from __future__ import annotations

import gc
import logging
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["quiet", "without_warnings"]


@contextmanager
def without_warnings() -> Iterator[Callable[[], None]]:
    """No warning of this thread is shown or raised.

    Gives a function to call now and then during a long block: when another thread leaves ``catch_warnings``, Python
    restores an older list of filters, without this one.
    """
    muted = _Muted()
    muted.stay()
    try:
        yield muted.stay
    finally:
        muted.leave()


@contextmanager
def quiet() -> Iterator[Callable[[], None]]:
    """No warning of this thread, nor anything that PyTorch logs in it. Gives the same function."""
    loggers = _Loggers()
    with without_warnings() as stay_without:

        def stay() -> None:
            stay_without()
            loggers.stay()

        loggers.stay()
        try:
            yield stay
        finally:
            loggers.leave()


class _InThread:
    """Stands for a compiled pattern. It matches everything, but only in the thread that made it."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    def match(self, _text: str) -> bool:
        return threading.get_ident() == self._thread


class _Muted:
    """A filter of warnings. It is added and removed without telling Python: changes that Python notices make it show
    again what it shows once a place, in all threads."""

    def __init__(self) -> None:
        self._filter: Any = ("ignore", _InThread(), Warning, None, 0)
        self._references = sys.getrefcount(self._filter)
        self._lists: list[list[Any]] = []

    def stay(self) -> None:
        filters: Any = warnings.filters
        if self._filter not in filters:
            filters.insert(0, self._filter)
            if not any(filters is known for known in self._lists):
                self._lists.append(filters)

    def leave(self) -> None:
        for filters in (warnings.filters, *self._lists):
            self._take_from(filters)
        if sys.getrefcount(self._filter) > self._references:  # copies that other threads are to put back
            for holder in gc.get_referrers(self._filter):
                if type(holder) is list:
                    self._take_from(holder)

    def _take_from(self, filters: Any) -> None:
        while self._filter in filters:
            filters.remove(self._filter)


class _Loggers:
    """PyTorch's, also those that come while the block runs."""

    def __init__(self) -> None:
        thread = threading.get_ident()
        self._filter: Callable[[logging.LogRecord], bool] = lambda _record: threading.get_ident() != thread
        self._muted: list[logging.Logger] = []
        self._known = 0

    def stay(self) -> None:
        loggers = logging.root.manager.loggerDict
        if len(loggers) == self._known:
            return
        self._known = len(loggers)
        for name, logger in [*loggers.items()]:
            if not isinstance(logger, logging.Logger) or not f"{name}.".startswith("torch."):
                continue
            if self._filter not in logger.filters:
                logger.addFilter(self._filter)
                self._muted.append(logger)

    def leave(self) -> None:
        for logger in self._muted:
            logger.removeFilter(self._filter)
