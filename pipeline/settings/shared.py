"""Settings of the process that a call needs otherwise than they are: borrowed by calls that overlap, and given back.

Libraries keep them for the whole process, and any number of threads may call. So they are counted: the first call that
needs another value keeps what was there, calls that come meanwhile agree with it on one value, and the last that leaves
puts back what was there. A value that somebody else has set in the meantime stays.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, TypeVar

import torch

__all__ = ["Shared", "Value", "cudnn_search"]

T = TypeVar("T")
V = TypeVar("V")

_lock = threading.RLock()
"""One for all settings: some of PyTorch's change others."""


class Shared(ABC, Generic[T]):
    """A setting, and what each call under way wants of it."""

    def __init__(self) -> None:
        self._wanted: list[list[T]] = []

    @contextmanager
    def borrowed(self, want: T) -> Iterator[Callable[[T], None]]:
        """For the length of a call, which may want something else later on: it is given a function for that."""
        mine = [want]

        def change(other: T) -> None:
            with _lock:
                mine[0] = other
                self._set(self._wants())

        with _lock:
            self._wanted.append(mine)
            try:
                self._set(self._wants())
            except BaseException:
                self._leave(mine)
                raise
        try:
            yield change
        finally:
            with _lock:
                self._leave(mine)
                if self._wanted:
                    self._set(self._wants())
                else:
                    self._give_back()

    def _leave(self, mine: list[T]) -> None:
        self._wanted = [each for each in self._wanted if each is not mine]

    def _wants(self) -> list[T]:
        return [each[0] for each in self._wanted]

    @abstractmethod
    def _set(self, wanted: Sequence[T]) -> None:
        """What serves all of them. Called again with each that comes, changes its mind or leaves."""

    @abstractmethod
    def _give_back(self) -> None:
        """What was there before the first came."""


class Value(Shared[T], Generic[T, V]):
    """A setting that can be read and written. agreed: (what was there, what is wanted) -> the value that serves all."""

    def __init__(
        self, read: Callable[[], V], write: Callable[[V], None], agreed: Callable[[V, Sequence[T]], V]
    ) -> None:
        super().__init__()
        self._read, self._write, self._agreed = read, write, agreed
        self._before: list[V] = []
        self._ours: V | None = None

    def _set(self, wanted: Sequence[T]) -> None:
        now = self._read()
        if not self._before or now != self._ours:
            self._before = [now]
        value = self._agreed(self._before[0], wanted)
        if now != value:
            self._write(value)
        self._ours = self._read()  # a setting may be rounded

    def _give_back(self) -> None:
        if self._before and self._ours != self._before[0] and self._read() == self._ours:
            self._write(self._before[0])
        self._before.clear()


cudnn_search: Value[bool, bool] = Value(
    torch._C._get_cudnn_benchmark, torch._C._set_cudnn_benchmark, lambda _before, wanted: all(wanted)
)
"""cuDNN's search for the fastest algorithm. It takes memory and time: only where all calls under way want it."""
