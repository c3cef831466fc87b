"""What Python's numbers do and the exporter's sizes do not, or do otherwise: ``divmod``, ``~``, ``round(n, -1)``,
copying, calculating with an ``IntEnum``, and comparisons whose result is ``True``, or an index, or equal to 1.
"""

from __future__ import annotations

import operator
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from tvae.pipeline.engine.capture.in_thread import instead, put_in
from tvae.pipeline.engine.capture.kinds_of_sizes import KINDS, KNOW_SIZES, knows_sizes

__all__ = ["sizes_calculate"]

_COMPARISONS = ("__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__")


@contextmanager
def sizes_calculate() -> Iterator[None]:
    """In this thread. Comparisons give a ``bool`` to the code of models alone, by a condition on the sizes."""
    from torch.fx.experimental import sym_node  # which gives sizes their operators when it is imported

    with ExitStack() as places:
        for kind in (torch.SymInt, torch.SymFloat):
            for name, function in _OPERATORS.items():
                places.enter_context(put_in(kind, name, _here(function)))
            places.enter_context(instead(kind, "__reduce_ex__", _is_its_copy))
            for name in _COMPARISONS:
                places.enter_context(instead(kind, name, _decided(getattr(kind, name))))
        for name, value in _PARTS.items():
            places.enter_context(put_in(torch.SymInt, name, _part(name, value)))
        sizes: Any = torch.SymInt
        places.enter_context(put_in(sizes, "__invert__", _here(lambda size: -size - 1)))
        places.enter_context(instead(sizes, "__round__", _rounded))
        places.enter_context(instead(sym_node, "to_node", _of_plain_numbers(vars(sym_node)["to_node"])))
        places.enter_context(instead(sizes, "__pow__", _power(sizes.__pow__)))
        yield


def _is_its_copy(size: Any, protocol: int) -> str:
    """To Python's ``copy`` a text says so."""
    return type(size).__qualname__


def _of_plain_numbers(original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """The exporter knows numbers of Python's own classes only, and to it others equal no size."""

    def node(size: Any, number: Any) -> Any:
        if not isinstance(number, (int, float)) or type(number) in (bool, int, float, *KINDS):
            return original(size, number)
        return original(size, int(number) if isinstance(number, int) else float(number))

    return node


def _divided(a: Any, b: Any) -> tuple[Any, Any]:
    return a // b, a % b


_OPERATORS: dict[str, Callable[..., Any]] = {"__divmod__": _divided, "__rdivmod__": lambda a, b: _divided(b, a)}
_PARTS: dict[str, Callable[[Any], Any]] = {
    "real": lambda size: size,
    "imag": lambda size: 0,
    "numerator": lambda size: size,
    "denominator": lambda size: 1,
}


def _here(function: Callable[..., Any]) -> Callable[..., Any]:
    """An operator that there is in this thread only."""
    thread = threading.get_ident()

    def calculate(size: Any, *others: Any) -> Any:
        if threading.get_ident() == thread:
            return function(size, *others)
        if others:
            return NotImplemented
        raise TypeError(f"bad operand type for unary ~: '{type(size).__name__}'")

    return calculate


def _part(name: str, value: Callable[[Any], Any]) -> Any:
    """An attribute likewise."""
    thread = threading.get_ident()

    def look_up(size: Any) -> Any:
        if threading.get_ident() != thread:
            raise AttributeError(f"'{type(size).__name__}' object has no attribute '{name}'")
        return value(size)

    return property(look_up)


def _rounded(size: Any, digits: Any = None) -> Any:
    """``round``, which of two multiples that are as near takes the even one."""
    if digits is None or operator.index(digits) >= 0:
        return size
    unit = 10 ** -operator.index(digits)
    whole, rest = size // unit, size % unit
    up = bool(2 * rest > unit) or (bool(2 * rest == unit) and bool(whole % 2 == 1))
    return (whole + up) * unit


def _power(original: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    return lambda size, exponent, *modulus: (
        original(size, exponent) % modulus[0] if modulus else original(size, exponent)
    )


def _decided(original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    theirs: set[Any] = set()  # names of modules that know sizes: most of those that compare, again and again

    def compare(size: Any, other: Any) -> Any:
        result = original(size, other)
        if type(result) is not torch.SymBool:
            return result
        frame = sys._getframe(2)  # the first is what stands in for the original
        asks = frame.f_globals.get("__name__")
        if asks in theirs:
            return result
        if knows_sizes(frame):
            if str(asks).partition(".")[0] in KNOW_SIZES:
                theirs.add(asks)
            return result
        return bool(result)

    return compare
