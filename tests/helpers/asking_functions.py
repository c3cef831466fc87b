"""Functions of another module that ask what a size is; models call them in many ways."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

__all__ = ["TABLE", "Asker", "asked", "matched", "typed", "unsized"]


def asked(n: Any) -> int:
    return 2 if isinstance(n, int) else 3


def matched(n: Any) -> int:
    match n:
        case int():
            return 2
    return 3


def typed(n: Any) -> int:
    return 2 if type(n) is int else 3


def unsized(n: Any) -> list[Any]:
    """Compares a type, too."""
    return [n, n] if type(n) is int else [*n]


class Asker:
    """No module, and no part of one."""

    def __call__(self, n: Any) -> int:
        return self.asks(n)

    def asks(self, n: Any) -> int:
        return asked(n)

    @staticmethod
    def of_none(n: Any) -> int:
        return asked(n)

    @classmethod
    def of_a_class(cls, n: Any) -> int:
        return asked(n)


def wrapped(function: Callable[[Any], int]) -> Callable[[Any], int]:
    @functools.wraps(function)
    def outer(n: Any) -> int:
        return function(n)

    return outer


TABLE: dict[str, Callable[[Any], int]] = {
    "partial": functools.partial(asked),
    "lambda": lambda n: 2 if isinstance(n, int) else 3,
    "wrapped": wrapped(matched),
    "single dispatch": functools.singledispatch(lambda n: 3),
}
