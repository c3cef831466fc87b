"""Triton reads itself, once in a process: it names what it keeps on disk after all of its own files, 400 megabytes.

It does so when it first builds or finds a kernel. Here one thread does it before, of those that build none does it
again, and the library is read in one go: a megabyte at a time, each of which gives Python's lock away twice, would take
seconds beside a capture, and slow that down by half. The next process is told the name (``triton_name``).

Imports neither PyTorch nor, before it is asked to read, Triton.
"""

from __future__ import annotations

import builtins
import functools
import logging
import mmap
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from tvae.kernels.triton_name import known_name, remember_name

__all__ = ["read_ahead", "read_triton", "wait_for_reading"]

_LARGE = 1 << 24
"""Bytes of a file that is read in one go."""
_reading = threading.Lock()
_log = logging.getLogger("tvae")


def read_triton() -> None:
    """Have Triton read its own sources, unless it has; other threads wait for that."""
    place: Any = import_module("triton.runtime.cache")
    if not hasattr(place, "triton_key"):
        return
    with _reading:
        own_name = place.triton_key
        if hasattr(own_name, "is_known"):
            return
        name = known_name(place.__file__)
        if name is not None:
            place.triton_key = functools.lru_cache(functools.wraps(own_name)(lambda: name))
        else:
            files: set[str] = set()
            with _in_one_go(place, lambda path: files.add(os.path.abspath(path))):
                name = own_name()  # and keeps it
            remember_name(place.__file__, name, files)
        place.triton_key.is_known = True


def read_ahead() -> None:
    """The same before Triton is needed, where there is one whose name is not known yet."""
    try:
        found = find_spec("triton")
        folders = None if found is None else found.submodule_search_locations
        if folders and known_name(os.path.join(folders[0], "runtime", "cache.py")) is None:
            read_triton()
    except Exception:  # whatever it is, it is told where Triton is needed
        _log.debug("Triton is not read", exc_info=True)


def wait_for_reading() -> None:
    """Wait until no thread reads; mostly that is at once."""
    if _reading.locked():
        read_triton()


@contextmanager
def _in_one_go(place: Any, opens: Callable[[Any], object] = lambda _file: None) -> Iterator[None]:
    """A module opens large files in this thread as ones that are read whole; all else as ever. opens: is told of each
    file that this thread opens."""
    thread = threading.get_ident()

    def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        mine = threading.get_ident() == thread
        if mine:
            opens(file)
        whole = mine and mode == "rb" and os.path.getsize(file) >= _LARGE
        return _Whole(file) if whole else builtins.open(file, mode, *args, **kwargs)

    place.open = opened
    try:
        yield
    finally:
        del place.open


class _Whole:
    """A file that gives all it has, however little is asked for."""

    def __init__(self, path: Any) -> None:
        with builtins.open(path, "rb") as file:
            self._left: list[Any] = [mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)]

    def read(self, _size: int = -1) -> Any:
        return self._left.pop() if self._left else b""

    def __enter__(self) -> _Whole:
        return self

    def __exit__(self, *_: object) -> None:
        self._left.clear()
