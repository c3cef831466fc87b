"""Containers as Python's own classes read them: a derived class may make anything of ``get``, ``items`` or ``==``.

A registry of transformers has a ``get`` without a default, tables of levels count from one, and some dictionaries load
modules when they are listed. What such objects hold is read here by the methods of the class underneath.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from itertools import chain
from typing import Any

__all__ = ["CONTAINERS", "base_of", "copied", "entries", "members", "reads_otherwise"]

CONTAINERS = (dict, list, set, deque)
"""Those that code may write to."""
_BASES = (OrderedDict, *CONTAINERS, frozenset, tuple)
_READING = ("__getitem__", "__iter__", "__len__", "__bool__", "__eq__", "__ne__", "__contains__", "items")


def base_of(kind: type) -> Any:
    """Python's own class underneath."""
    return next(base for base in _BASES if issubclass(kind, base))


def reads_otherwise(kind: type) -> bool:
    """Does a class of containers read them in a way of its own?"""
    if kind.__module__ in ("builtins", "collections"):
        return False
    base = base_of(kind)
    return any(getattr(kind, name, None) is not getattr(base, name, None) for name in _READING)


def entries(mapping: dict[Any, Any]) -> list[tuple[Any, Any]]:
    """Keys and values of a dictionary, in its order."""
    return [*base_of(type(mapping)).items(mapping)]


def members(value: Any) -> list[Any]:
    """The values of a list, tuple, set or deque; keys and values of a dictionary in turn."""
    if isinstance(value, dict):
        return [*chain.from_iterable(entries(value))]
    return [*base_of(type(value)).__iter__(value)]


def copied(container: Any) -> Any:
    """What a container holds, as one of Python's own."""
    base = base_of(type(container))
    if isinstance(container, dict):
        return base(entries(container))
    if isinstance(container, deque):
        return deque(members(container), container.maxlen)
    return base(members(container))
