"""``int(size)`` in the code of a model stays a size while it is captured, and a size is an ``int`` to it.

Python's ``int`` gives a number, so ``int(height * 1.5)`` would make the height a constant. In that time copies stand in
for a module's methods: the same code, in which ``int``, ``float`` and ``isinstance`` are functions that know sizes. The
copies are attributes of the captured modules, in the capturing thread; classes and globals stay as they are.
"""

from __future__ import annotations

import dis
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from tvae.pipeline.engine.capture.in_thread import replaced_in
from tvae.pipeline.engine.capture.maths import SYMBOLIC
from tvae.pipeline.engine.capture.tensors_of_sizes import rounded_to_zero

__all__ = ["reads_numbers", "sizes_stay_sizes"]

_NOT_THEIRS = ("torch.", "tvae.")
"""Packages whose functions are left as they are."""


def _whole(*args: Any, **kwargs: Any) -> Any:
    """``int`` of a size, and of a tensor that is made of sizes."""
    value = args[0].item() if len(args) == 1 and isinstance(args[0], Tensor) else args[0] if args else 0
    return rounded_to_zero(value) if isinstance(value, SYMBOLIC) else int(*args, **kwargs)


def _fraction(*args: Any, **kwargs: Any) -> Any:
    """``float`` likewise."""
    value = args[0].item() if len(args) == 1 and isinstance(args[0], Tensor) else args[0] if args else 0
    return torch.sym_float(value) if isinstance(value, SYMBOLIC) else float(*args, **kwargs)


def _is(value: Any, kinds: Any) -> bool:
    """``isinstance``."""
    known = {torch.SymInt: 0, torch.SymFloat: 0.0}.get(type(value))
    return isinstance(value, kinds) or (known is not None and isinstance(known, kinds))


_NUMBERS = {"int", "float"}
_INSTEAD: dict[str, Callable[..., Any]] = {"int": _whole, "float": _fraction, "isinstance": _is}


def reads_numbers(module: nn.Module) -> bool:
    """Does the code of a model, or of one of its parts, call ``int`` or ``float``?"""
    return any(_functions(part) for part in module.modules())


@contextmanager
def sizes_stay_sizes(modules: Iterable[nn.Module]) -> Iterator[None]:
    """In this thread, for calls of these modules."""
    thread = threading.get_ident()
    put: list[tuple[dict[str, Any], str]] = []
    try:
        for part in modules:
            for name, function in _functions(part).items():
                vars(part)[name] = replaced_in(thread, function, _copied(function)).__get__(part)
                put.append((vars(part), name))
        yield
    finally:
        for attributes, name in put:
            attributes.pop(name, None)


def _functions(part: nn.Module) -> dict[str, FunctionType]:
    """The methods of a module to copy, by name: those that are not replaced on the object itself."""
    found: dict[str, FunctionType] = {}
    for kind in reversed(type(part).__mro__):
        if f"{kind.__module__}.".startswith(_NOT_THEIRS):
            continue
        for name, function in vars(kind).items():
            found.pop(name, None)
            if isinstance(function, FunctionType) and not name.startswith("__") and _is_copied(function):
                found[name] = function
    return {name: function for name, function in found.items() if name not in vars(part)}


def _is_copied(function: FunctionType, seen: set[CodeType] | None = None) -> bool:
    """Does it, or a function that it finds among its globals, call one of these? seen: those that were asked before."""
    code, names, seen = function.__code__, function.__globals__, set() if seen is None else seen
    if f"{function.__module__}.".startswith(_NOT_THEIRS) or code in seen or _writes_globals(code):
        return False
    seen.add(code)
    if _called(code) - names.keys():
        return True
    others = [names.get(name) for name in _names(code)]
    return any(isinstance(other, FunctionType) and _is_copied(other, seen) for other in others)


def _codes(code: CodeType) -> Iterator[CodeType]:
    """That of a function, and those of the functions inside."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _codes(inner)


def _names(code: CodeType) -> set[str]:
    return {name for each in _codes(code) for name in each.co_names}


def _writes_globals(code: CodeType) -> bool:
    return any(step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL") for each in _codes(code) for step in _steps(each))


@cache
def _called(code: CodeType) -> frozenset[str]:
    """Those names that are called wherever they are read: not those of a type that values are compared with."""
    reads = [
        (step.argval, bool((step.arg or 0) & 1))
        for each in _codes(code)
        for step in _steps(each)
        if step.opname == "LOAD_GLOBAL" and step.argval in _INSTEAD
    ]
    found = frozenset(name for name, _ in reads) - {name for name, called in reads if not called}
    return found if _NUMBERS & _names(code) else frozenset()


@cache
def _steps(code: CodeType) -> list[dis.Instruction]:
    return [*dis.get_instructions(code)]


class _Names(dict[str, Any]):
    """The globals of a function, but for the names that it calls; functions found there are copied in turn."""

    def __init__(self, function: FunctionType) -> None:
        super().__init__()
        self._names = function.__globals__
        self._others = {name: _INSTEAD[name] for name in _called(function.__code__) - self._names.keys()}

    def __missing__(self, name: str) -> Any:
        if name in self._others:
            return self._others[name]
        value = self._names[name]
        return _copied(value) if isinstance(value, FunctionType) and _is_copied(value) else value


def _copied(function: FunctionType) -> FunctionType:
    copy = FunctionType(
        function.__code__, _Names(function), function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy
