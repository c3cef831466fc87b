"""A size is an ``int`` to a model while it is captured: to ``isinstance``, ``match``, ``__class__``, and more.

Python asks an object that is no instance of a class for its ``__class__``. Sizes answer by who asks: ``int``, ``float``
or ``bool`` to a model's code, wherever it lies, and their own class to PyTorch's. ``type`` does not ask the object.
Numbers can be kept in sets and as keys, too.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

import torch

from tvae.pipeline.engine.capture.in_thread import instead, put_in

__all__ = ["KINDS", "KNOW_SIZES", "knows_sizes", "sizes_are_numbers"]

KINDS: dict[type, type] = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
"""What stands for a number of Python's while a model is captured, and the class of that number."""

KNOW_SIZES = {"torch", "sympy", "tvae"}
"""Packages whose code tells sizes from numbers. Python's own asks on behalf of its caller."""


@contextmanager
def sizes_are_numbers() -> Iterator[None]:
    """In this thread, to the code of others than these packages."""
    with ExitStack() as places:
        for kind, number in KINDS.items():
            places.enter_context(put_in(kind, "__getattribute__", _looked_up(number)))
            places.enter_context(instead(kind, "__hash__", _hashed(kind, number)))
        yield


def _looked_up(number: type) -> Callable[[Any, str], Any]:
    thread, ident, get, frame_of = threading.get_ident(), threading.get_ident, object.__getattribute__, sys._getframe
    theirs: set[Any] = set()  # names of modules that know sizes: most of those that ask, again and again

    def look_up(size: Any, name: str) -> Any:
        if name != "__class__":
            return get(size, name)
        frame = frame_of(1)
        asks = frame.f_globals.get("__name__")
        if asks in theirs or ident() != thread:
            return get(size, name)
        if knows_sizes(frame):
            if str(asks).partition(".")[0] in KNOW_SIZES:
                theirs.add(asks)
            return get(size, name)
        return number

    return look_up


def _hashed(kind: Any, number: type) -> Callable[[Any], int]:
    """A model that keeps things by size finds them by number, and is a model of that size alone."""
    original = kind.__hash__

    def hashed(size: Any) -> int:
        asks = str(sys._getframe(2).f_globals.get("__name__", ""))  # the first is what stands in for the original
        found: int = original(size) if asks.partition(".")[0] == "torch" else hash(number(size))
        return found

    return hashed


def knows_sizes(frame: FrameType | None) -> bool:
    """Does the code of this frame, or whoever it works for? Without a name it is made at run time, by a model."""
    while frame is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package in KNOW_SIZES:
            return True
        if package not in sys.stdlib_module_names:
            return False
        frame = frame.f_back
    return True
