"""What a job file may say of a step: the fields of ``Job``, as TOML writes them, with the types declared there."""

from __future__ import annotations

import math
import re
import reprlib
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from functools import cache
from typing import Any

from tvae.pipeline.caches.spec import Buckets, CacheRequest
from tvae.pipeline.errors import UsageError
from tvae.pipeline.jobs.geometry import Size
from tvae.pipeline.jobs.job import Job

__all__ = ["Key", "cache_keys", "keys", "override_keys", "shown"]

_NOT_OF_FILES = ("operation", "inputs", "output", "listed", "cache", "dry_run", "exact", "claim", "sharers", "recorded")
"""A step has the first four itself, and a table for its cache; the others are asked for by the command."""
_OF_ALL_ITEMS = ("recursive", "naming")
"""Not for some of them: they say which items and outputs there are."""


@dataclass(frozen=True)
class Key:
    """wanted: what a value must be, for people. schema: the same as JSON Schema. read: the field's value for TOML's;
    ValueError for another. written: TOML's for the field's."""

    wanted: str
    schema: Mapping[str, Any]
    read: Callable[[Any], Any]
    written: Callable[[Any], Any] = lambda value: value


@cache
def keys() -> Mapping[str, Key]:
    """Of a step, by name. The limits of values are for ``Job`` to say."""
    return {name: key for name, key in _keys_of(Job) if name not in _NOT_OF_FILES}


@cache
def override_keys() -> Mapping[str, Key]:
    """Those of a step that some of its items may have otherwise."""
    return {name: key for name, key in keys().items() if name not in _OF_ALL_ITEMS}


@cache
def cache_keys() -> Mapping[str, Key]:
    """Of a step's table ``cache``: the fields of ``CacheRequest``."""
    return dict(_keys_of(CacheRequest))


def _keys_of(described: type) -> Iterator[tuple[str, Key]]:
    hints = typing.get_type_hints(described)
    return ((f.name, _key(hints[f.name])) for f in fields(described) if f.name not in _NOT_OF_FILES)


def _key(hint: Any) -> Key:
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        (hint,) = (each for each in typing.get_args(hint) if each is not type(None))
    if typing.get_origin(hint) is typing.Literal:
        words = typing.get_args(hint)
        return Key(f"one of {', '.join(words)}", {"enum": [*words]}, _within(words))
    return _KEYS[hint]


def _within(words: tuple[str, ...]) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if value not in words:
            raise ValueError
        return value

    return read


def _exactly(*kinds: type) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if type(value) not in kinds or not _is_finite(value):  # True is no number
            raise ValueError
        return kinds[0](value)

    return read


def _size(value: Any) -> Size:
    width, by, height = (value if isinstance(value, str) else "").lower().partition("x")
    if not (by and all(part.isascii() and part.isdigit() and len(part) < 10 for part in (width, height))):
        raise ValueError
    return int(width), int(height)


def _numbers(value: Any) -> tuple[int, ...]:
    read = _exactly(int)
    return tuple(map(read, value if isinstance(value, list) else [value]))


def _fps(value: Any) -> Fraction:
    found = re.fullmatch(r"\d{1,9}(/0*[1-9]\d{0,8}|\.\d{1,9})?", str(value), re.ASCII)
    if found is None or type(value) not in (int, str):
        raise ValueError
    return Fraction(str(value))  # only now: of "1e999999999" it would make all digits


def _buckets(value: Any) -> Buckets:
    try:
        return Buckets.parse(_exactly(str)(value))
    except UsageError:
        raise ValueError from None


def _table(value: Any) -> tuple[tuple[str, str], ...]:
    read = _exactly(str, int, float)
    if not isinstance(value, dict):
        raise ValueError
    return tuple((name, read(each)) for name, each in value.items())


def _is_finite(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


_KEYS: dict[Any, Key] = {
    str: Key("a text", {"type": "string"}, _exactly(str)),
    bool: Key("true or false", {"type": "boolean"}, _exactly(bool)),
    int: Key("a whole number", {"type": "integer"}, _exactly(int)),
    float: Key("a number", {"type": "number"}, _exactly(float, int)),
    Size: Key(
        "a size such as '1280x720'", {"type": "string", "pattern": "^[0-9]+[xX][0-9]+$"}, _size, "{0[0]}x{0[1]}".format
    ),
    Buckets: Key("on, off, or sides such as '256-2048/64'", {"type": "string"}, _buckets, str),
    Fraction: Key("a rate such as 25 or '30000/1001'", {"type": ["integer", "string"]}, _fps, str),
    tuple[int, ...]: Key(
        "a whole number or a list of them",
        {"type": ["integer", "array"], "items": {"type": "integer"}},
        _numbers,
        lambda value: value[0] if len(value) == 1 else [*value],
    ),
    tuple[tuple[str, str], ...]: Key(
        "a table of texts and numbers",
        {"type": "object", "additionalProperties": {"type": ["string", "number"]}},
        _table,
        dict,
    ),
}


def shown(value: Any) -> str:
    """For an error of one line."""
    return reprlib.repr(value)
