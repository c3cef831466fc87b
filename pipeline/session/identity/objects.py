"""Objects that are neither modules, tensors nor code, as text: containers, arrays, and whatever holds attributes."""

from __future__ import annotations

import functools
import gc
import operator
import re
import weakref
from array import array
from collections import deque
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from enum import Enum
from pathlib import PurePath
from threading import local
from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tvae.pipeline.session.identity.code import plain
from tvae.pipeline.session.identity.containers import entries, members
from tvae.pipeline.session.identity.library import library_class

if TYPE_CHECKING:
    from tvae.pipeline.session.identity.walk import Walk

__all__ = ["described_object"]

_NO_MATTER = {"Logger", "RootLogger", "LoggerAdapter", "lock", "RLock", "Condition", "Environ", "_Environ"}
"""Python's own classes that no result depends on, or whose changes need not be seen."""
_HEAP = 1 << 9  # Py_TPFLAGS_HEAPTYPE
_EMPTY = object()


def described_object(walk: Walk, value: Any, path: str) -> str:
    """The text of an object. Puts its parts on the watchlist."""
    for kinds, describe in _DESCRIBED:
        if isinstance(value, kinds):
            walk.watch.kind(value)
            held = describe(walk, value, path)
            state = {} if isinstance(value, (Enum, PurePath, weakref.ref, local)) else _held(value, "__dict__") or {}
            if state and not _configuration(value):
                walk.watch.container(state)
                held = f"{held} {walk.attributes(state, path)}"
            return f"{walk.kind(value)} {held}"
    return _holder(walk, value, path)


def _holder(walk: Walk, value: Any, path: str) -> str:
    """An object of whatever class that holds attributes."""
    kind = type(value)
    if library_class(kind) and (kind.__name__ in _NO_MATTER or kind.__module__ == "typing"):
        return kind.__qualname__
    if kind.__module__ == "torch._ops":
        return f"{kind.__qualname__} {value}"
    state: dict[str, Any] | None = _held(value, "__dict__")
    slots = sorted({s for c in kind.__mro__ for s in _slots(c)})
    native = any(c is not object and not c.__flags__ & _HEAP for c in kind.__mro__)
    if native or (state is None and not slots and kind.__basicsize__ > object.__basicsize__):
        return walk.opaque(value, path)  # it refers to something that Python does not see
    walk.watch.kind(value)
    held = {s: found for s in slots if (found := _held(value, s, _EMPTY)) is not _EMPTY}
    if slots:
        walk.watch.view(lambda: {s: found for s in slots if (found := _held(value, s, _EMPTY)) is not _EMPTY})
    if state is not None:
        walk.watch.container(state)
    return f"{walk.kind(value)} {walk.attributes({**held, **(state or {})}, path)}"


def _held(value: Any, name: str, empty: Any = None) -> Any:
    """An attribute that is there, without a ``__getattr__`` that the class may have."""
    try:
        return object.__getattribute__(value, name)
    except AttributeError:
        return empty


def _slots(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    hidden = [f"_{kind.__name__.lstrip('_')}{n}" if n.startswith("__") and not n.endswith("__") else n for n in names]
    return tuple(n for n in hidden if n not in ("__dict__", "__weakref__"))


def _configuration(value: Any) -> bool:
    """Is it diffusers' configuration? It holds everything twice, and keys that begin with "_" are notes."""
    return type(value).__name__ == "FrozenDict"


def _mapping(walk: Walk, value: Mapping[Any, Any], path: str) -> str:
    found = None
    for live in gc.get_referents(value) if isinstance(value, MappingProxyType) else (value,):
        if isinstance(live, dict):
            walk.watch.container(live)
            walk.watch.order(live)
            found = entries(live)
    notes = _configuration(value)
    items = [(k, v) for k, v in (value.items() if found is None else found) if not (notes and str(k).startswith("_"))]
    factory = getattr(value, "default_factory", None)
    text = ", ".join([f"{walk.value(k, path)}: {walk.value(v, f'{path}[{k!r}]')}" for k, v in items])
    return f"{{{text}}} {walk.value(factory, path)}"


def _sequence(walk: Walk, value: Any, path: str) -> str:
    if not isinstance(value, tuple):
        walk.watch.container(value)
    return f"[{', '.join([walk.value(v, f'{path}[{n}]') for n, v in enumerate(members(value))])}]"


def _set(walk: Walk, value: Any, path: str) -> str:
    if isinstance(value, set):
        walk.watch.container(value)
    told = {}
    held = members(value)
    for v in held:
        name = f"{getattr(v, '__module__', '')}.{getattr(v, '__qualname__', '')}"
        told[plain(v) or (repr(v) if _all_plain(v) else name)] = v
    if len(told) < len(held) or "." in told:
        return walk.opaque(value, path, "a set of objects")
    return f"{{{', '.join([walk.value(told[text], path) for text in sorted(told)])}}}"


def _all_plain(value: Any) -> bool:
    return isinstance(value, tuple) and all(plain(v) is not None or _all_plain(v) for v in value)


def _array(walk: Walk, value: Any, path: str) -> str:
    if value.dtype.hasobject:
        return walk.opaque(value, path, "an array of objects")
    if isinstance(value, np.ndarray):
        walk.watch.view(lambda: (value.shape, value.dtype.str, value.tobytes()))
    return f"{value.dtype.str} {value.shape} {value.tobytes().hex()}"


def _buffer(walk: Walk, value: bytearray | array[Any] | memoryview, path: str) -> str:
    kind = memoryview(value).format
    walk.watch.view(lambda: bytes(value))
    return f"{kind} {bytes(value)!r}"


def _of_context(walk: Walk, value: ContextVar[Any], path: str) -> str:
    held = _now(value)
    walk.watch.view(lambda: _now(value) is held)
    return walk.value(held, path)


def _now(value: ContextVar[Any]) -> Any:
    try:
        return value.get()  # an argument would be taken instead of the variable's own default
    except LookupError:
        return None


def _of_thread(walk: Walk, value: local, path: str) -> str:
    """What the thread that calls has there."""
    held = {**vars(value)}
    walk.watch.view(lambda: vars(value).keys() == held.keys() and all(vars(value)[k] is v for k, v in held.items()))
    return walk.attributes(held, path)


def _partial(walk: Walk, value: functools.partial[Any], path: str) -> str:
    held = value.func, value.args, value.keywords
    walk.watch.view(lambda: all(map(operator.is_, (value.func, value.args, value.keywords), held)))
    return walk.value(held, path)


def _of_enum(walk: Walk, value: Enum, path: str) -> str:
    walk.watch.container(vars(value))
    return f"{value.name} {walk.value(value.value, path)}"


_DESCRIBED: tuple[tuple[Any, Callable[[Walk, Any, str], str]], ...] = (
    (Enum, _of_enum),
    ((dict, MappingProxyType), _mapping),
    ((list, tuple, deque), _sequence),
    ((set, frozenset), _set),
    ((np.ndarray, np.generic), _array),
    ((bytearray, array, memoryview), _buffer),
    (ContextVar, _of_context),
    (local, _of_thread),
    (SimpleNamespace, lambda walk, value, path: ""),  # all that it holds are attributes
    (slice, lambda walk, value, path: walk.value((value.start, value.stop, value.step), path)),
    (functools.partial, _partial),
    (functools.partialmethod, lambda walk, value, path: walk.value((value.func, value.args, value.keywords), path)),
    (weakref.ref, lambda walk, value, path: walk.value(value(), path)),
    (re.Pattern, lambda walk, value, path: f"{value.pattern!r} {value.flags}"),
    ((torch.finfo, torch.iinfo, np.dtype), lambda walk, value, path: repr(value)),
    (PurePath, lambda walk, value, path: str(value)),
    (str, lambda walk, value, path: str.__repr__(value)),
    (bytes, lambda walk, value, path: bytes.__repr__(value)),
    (bool, lambda walk, value, path: str(value)),
    (int, lambda walk, value, path: int.__repr__(value)),
    (float, lambda walk, value, path: float.__repr__(value)),
    (complex, lambda walk, value, path: complex.__repr__(value)),
)
