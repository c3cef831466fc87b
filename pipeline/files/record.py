"""Dataclasses to JSON and back, strictly: what a file says is checked against the declared types and bounds.

A damaged or foreign file must end in one clear line, not in an `AttributeError` three calls later, so reading checks
every field. Bounds stand where a field is declared: ``Annotated[int, Within(1, 64)]``. Whole numbers without bounds
have 64 bits and a sign. Fractions are positive, of two numbers of 31 bits, and written as `"num/den"`; tuples are
written as lists.
"""

from __future__ import annotations

import dataclasses
import reprlib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Annotated, Any, TypeVar

__all__ = ["Count", "Side", "Within", "from_json", "to_json"]

T = TypeVar("T")


@dataclass(frozen=True)
class Within:
    """Bounds of a number; both belong to it."""

    least: int
    most: int


Count = Annotated[int, Within(0, 2**31 - 1)]
"""How many of something, or which of many."""
Side = Annotated[int, Within(1, 2**31 - 1)]
"""Width or height of a picture."""

_PLAIN = {str, int, float, bool, type(None)}
_WIDE = Within(-(2**63), 2**63 - 1)
_LARGEST_TERM = 2**31 - 1
"""Of a fraction; FFmpeg's rationals hold no more."""


def to_json(value: Any) -> Any:
    """JSON-able copy of a dataclass, fraction, sequence, mapping or plain value."""
    kind = type(value)
    if kind in _PLAIN:  # most are, and asking what else they could be takes longer than all the rest
        return value
    if dataclasses.is_dataclass(kind):
        return {name: to_json(getattr(value, name)) for name in _names(kind)}
    if isinstance(value, Fraction):
        return f"{value.numerator}/{value.denominator}"
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    return value


@cache
def _names(cls: type) -> tuple[str, ...]:
    return tuple(f.name for f in dataclasses.fields(cls))


def from_json(cls: type[T], data: Any, where: str = "metadata") -> T:
    """Build the dataclass `cls` from JSON data. `ValueError` names the field that does not fit.

    Unknown keys are ignored, so that a later version of the format can add fields.
    """
    if not isinstance(data, Mapping):
        raise ValueError(f"{where}: expected an object, found {type(data).__name__}")
    values: dict[str, Any] = {}
    for name, kind, needed in _fields(cls):  # type: ignore[arg-type]
        if name in data:
            values[name] = _value(kind, data[name], f"{where}.{name}")
        elif needed:
            raise ValueError(f"{where}.{name} is missing")
    return cls(**values)


@cache
def _fields(cls: type) -> list[tuple[str, Any, bool]]:
    """Name, type, and whether there is no default: looking types up takes longer than all the rest."""
    hints = typing.get_type_hints(cls, include_extras=True)
    missing = dataclasses.MISSING
    return [(f.name, hints[f.name], f.default is f.default_factory is missing) for f in dataclasses.fields(cls)]


def _value(kind: Any, data: Any, where: str) -> Any:
    if kind is Any:
        return data
    if kind is int:
        return _whole(data, _WIDE, where)
    if kind is Fraction:
        return _fraction(data, where)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return _whole(data, arguments[1], where)
    if origin in (typing.Union, types.UnionType):
        if data is None and type(None) in arguments:
            return None
        (kind,) = (a for a in arguments if a is not type(None))  # the records only use `X | None`
        return _value(kind, data, where)
    if origin is typing.Literal:
        if isinstance(data, str) and data in arguments:
            return data
        raise ValueError(f"{where}: expected one of {', '.join(arguments)}, found {reprlib.repr(data)}")
    if origin is not None:
        return _values(origin, arguments, data, where)
    if dataclasses.is_dataclass(kind):
        return from_json(typing.cast(type, kind), data, where)
    if isinstance(kind, type) and isinstance(data, kind):
        return data
    raise _unfit(kind, data, where)


def _values(origin: Any, arguments: tuple[Any, ...], data: Any, where: str) -> Any:
    """Of a container."""
    if origin is dict and isinstance(data, Mapping):
        return {key: _value(arguments[1], item, f"{where}.{key}") for key, item in data.items()}
    if isinstance(data, list):
        if origin is list or arguments[-1] is Ellipsis:
            return origin(_value(arguments[0], item, where) for item in data)
        if len(data) == len(arguments):
            return tuple(_value(a, item, where) for a, item in zip(arguments, data, strict=True))
    raise _unfit(origin, data, where)


def _whole(data: Any, bounds: Within, where: str) -> int:
    if type(data) is not int:
        raise _unfit(int, data, where)
    if not bounds.least <= data <= bounds.most:
        raise ValueError(f"{where}: expected a number from {bounds.least} to {bounds.most}, found {data}")
    return data


def _fraction(data: Any, where: str) -> Fraction:
    terms = data.split("/") if isinstance(data, str) and len(data) < 64 else []
    if len(terms) == 1:
        terms.append("1")  # a Fraction as Python writes it
    if len(terms) == 2 and all(term.isascii() and term.isdecimal() for term in terms):
        numerator, denominator = map(int, terms)
        if 0 < numerator <= _LARGEST_TERM and 0 < denominator <= _LARGEST_TERM:
            return Fraction(numerator, denominator)
    raise ValueError(f"{where}: expected a fraction such as '1/30', found {reprlib.repr(data)}")


def _unfit(kind: Any, data: Any, where: str) -> ValueError:
    return ValueError(f"{where}: expected {getattr(kind, '__name__', kind)}, found {reprlib.repr(data)}")
