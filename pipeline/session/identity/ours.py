"""Tells a library's own code from other code, which may have been put in its place."""

from __future__ import annotations

import functools
import types
from collections.abc import Mapping
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

from tvae.pipeline.session.identity.code import plain
from tvae.pipeline.session.identity.containers import entries
from tvae.pipeline.session.identity.library import library_class, library_function

__all__ = ["NATIVE", "WRAPPERS", "contents", "ours", "tells_apart", "wrapped"]

WRAPPERS = (staticmethod, classmethod, property, functools.cached_property, functools._lru_cache_wrapper)
NATIVE = (
    *(BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType),
    *(types.MethodWrapperType, types.GetSetDescriptorType, types.MemberDescriptorType),
    *(types.GenericAlias, types.UnionType),
)


def wrapped(value: Any) -> list[Any]:
    """The functions in a descriptor or a wrapper."""
    if isinstance(value, property):
        return [f for f in (value.fget, value.fset, value.fdel) if f is not None]
    inner = getattr(value, "func", None) if isinstance(value, functools.cached_property) else None
    inner = getattr(value, "__wrapped__", None) if inner is None and isinstance(value, WRAPPERS) else inner
    return [] if inner is None else [inner]


def contents(cells: Mapping[str, types.CellType]) -> list[tuple[str, Any]]:
    found = []
    for name, cell in sorted(cells.items()):
        try:
            found.append((name, cell.cell_contents))
        except ValueError:  # not filled yet
            found.append((name, "<empty>"))
    return found


def tells_apart(value: Any) -> bool:
    """Can this make two closures of one library function differ?"""
    return plain(value) is not None or isinstance(value, (FunctionType, BuiltinFunctionType)) or ours(value)


def ours(value: Any, depth: int = 3) -> bool:
    """Is it code from outside the libraries, or does it contain some?"""
    if isinstance(value, FunctionType):
        if not library_function(value):
            return True
        cells = dict(zip(value.__code__.co_freevars, value.__closure__ or (), strict=True))
        return depth > 0 and any(ours(v, depth - 1) for _, v in contents(cells))
    if isinstance(value, type):
        return not library_class(value)
    if isinstance(value, MethodType):
        return ours(value.__func__, depth) or ours(value.__self__, depth)
    if isinstance(value, functools.partial):
        return ours(value.func, depth) or any(ours(v, depth) for v in (*value.args, *value.keywords.values()))
    if isinstance(value, WRAPPERS):
        return any(ours(f, depth) for f in wrapped(value))
    if isinstance(value, dict):  # the functions of ``singledispatch``
        return depth > 0 and any(ours(v, depth - 1) for _, v in entries(value))
    if isinstance(value, (ModuleType, *NATIVE)):
        return False
    return not library_class(type(value))
