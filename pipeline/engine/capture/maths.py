"""Functions of Python's that do not know sizes: ``math.sqrt``, and those that write numbers as text."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any

import torch

from tvae.pipeline.engine.capture.in_thread import instead

__all__ = ["SYMBOLIC", "sizes_in_functions", "texts_stay_names"]

SYMBOLIC = (torch.SymInt, torch.SymFloat)
"""The types of a size, and of what is computed of sizes, while a model is captured."""

_THEIRS = ("torch", "sympy")
"""Packages that write sizes as the names of symbols. sympy is not imported before the exporter does it."""


_NAMES: ContextVar[bool] = ContextVar("texts of sizes are those of their symbols", default=False)


@contextmanager
def texts_stay_names() -> Iterator[None]:
    """For a model that finds things by the texts of sizes, and does nothing else with them: those of equal sizes are
    equal, and no size becomes a constant."""
    before = _NAMES.set(True)
    try:
        yield
    finally:
        _NAMES.reset(before)


@contextmanager
def sizes_in_functions() -> Iterator[None]:
    """In this thread ``math.sqrt`` of a size stays symbolic, and a model that writes a size as text
    gets the text of its number: as a key of a table, say, for which the name of a symbol is another."""
    with ExitStack() as places:
        places.enter_context(instead(math, "sqrt", _root))
        for kind in SYMBOLIC:
            for name in ("__str__", "__repr__", "__format__"):
                places.enter_context(instead(kind, name, _as_text(kind, name)))
        yield


_sqrt = math.sqrt


def _root(number: Any) -> Any:
    return torch.sym_sqrt(number) if isinstance(number, SYMBOLIC) else _sqrt(number)


def _as_text(kind: Any, name: str) -> Callable[..., Any]:
    original, plain = getattr(kind, name), int if kind is torch.SymInt else float

    def text(size: Any, *how: Any) -> Any:
        asks = sys._getframe(2).f_globals.get("__name__", "")  # the first is what stands in for the original
        if _NAMES.get() or asks.partition(".")[0] in _THEIRS:
            return original(size, *how)
        return getattr(plain(size), name)(*how)

    return text
