"""Dataclasses to JSON and back, strictly: what a file says is checked against the declared types.

The latent files carry their metadata as JSON. A damaged or foreign file must end in one clear line, not in an
`AttributeError` three calls later, so reading checks every field. Fractions are written as `"num/den"`,
tuples as lists.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from fractions import Fraction
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")


def to_json(value: Any) -> Any:
    """JSON-able copy of a dataclass, fraction, sequence, mapping or plain value."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Fraction):
        return f"{value.numerator}/{value.denominator}"
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    return value


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
    hints = typing.get_type_hints(cls)
    missing = dataclasses.MISSING
    return [(f.name, hints[f.name], f.default is f.default_factory is missing) for f in dataclasses.fields(cls)]


def _value(kind: Any, data: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return data
    if origin in (typing.Union, types.UnionType):
        if data is None and type(None) in arguments:
            return None
        (kind,) = (a for a in arguments if a is not type(None))  # the records only use `X | None`
        return _value(kind, data, where)
    if origin is typing.Literal:
        if data in arguments:
            return data
        raise ValueError(f"{where}: expected one of {', '.join(map(str, arguments))}, found {data!r}")
    if origin is tuple and isinstance(data, list):
        if arguments[-1] is Ellipsis:
            return tuple(_value(arguments[0], item, where) for item in data)
        if len(data) == len(arguments):
            return tuple(_value(a, item, where) for a, item in zip(arguments, data, strict=True))
    if origin is dict and isinstance(data, Mapping):
        return dict(data)
    if kind is Fraction:
        return _fraction(data, where)
    if dataclasses.is_dataclass(kind):
        return from_json(typing.cast(type, kind), data, where)
    if isinstance(kind, type) and isinstance(data, kind) and not (kind is int and isinstance(data, bool)):
        return data
    raise ValueError(f"{where}: expected {getattr(kind, '__name__', kind)}, found {data!r}")


def _fraction(data: Any, where: str) -> Fraction:
    try:
        numerator, denominator = str(data).split("/")
        return Fraction(int(numerator), int(denominator))
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"{where}: expected a fraction such as '1/30', found {data!r}") from None
