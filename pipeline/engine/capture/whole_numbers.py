"""``int(size)`` in the code of a model stays a size while it is captured, and ``type(size)`` is ``int``.

Python's ``int`` gives a number, so ``int(height * 1.5)`` would make the height a constant. In that time copies stand in
for a module's methods: the same code, in which ``int``, ``float`` and ``type`` are functions that know sizes, and
functions under ``lru_cache`` are called without it, since a capture's values are not the model's. The copies are
attributes of the captured modules, in the capturing thread; classes and globals stay as they are.
"""

from __future__ import annotations

import dis
import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

from tvae.pipeline.engine.capture.imports_inside import codes_of
from tvae.pipeline.engine.capture.in_thread import replaced_in
from tvae.pipeline.engine.capture.kinds_of_sizes import KINDS
from tvae.pipeline.engine.capture.maths import SYMBOLIC
from tvae.pipeline.engine.capture.tensors_of_sizes import rounded_to_zero

__all__ = ["Names", "reads_numbers", "sizes_stay_sizes"]

_NOT_THEIRS = ("torch.", "tvae.")
"""Packages whose functions are left as they are."""


def _whole(*args: Any, **kwargs: Any) -> Any:
    """``int`` of a size, and of a tensor that is made of sizes."""
    value = args[0].long().item() if len(args) == 1 and isinstance(args[0], Tensor) else args[0] if args else 0
    return rounded_to_zero(value) if isinstance(value, SYMBOLIC) else int(*args, **kwargs)


def _fraction(*args: Any, **kwargs: Any) -> Any:
    """``float`` likewise."""
    value = args[0].item() if len(args) == 1 and isinstance(args[0], Tensor) else args[0] if args else 0
    if isinstance(value, torch.SymBool):
        return float(bool(value))
    return torch.sym_float(value) if isinstance(value, SYMBOLIC) else float(*args, **kwargs)


def _type(*args: Any, **kwargs: Any) -> Any:
    """``type``, to which the exporter's tensors are PyTorch's."""
    if len(args) != 1:
        return type(*args, **kwargs)
    if isinstance(args[0], FakeTensor | FunctionalTensor):
        return nn.Parameter if isinstance(args[0], nn.Parameter) else Tensor
    return KINDS.get(type(args[0]), type(args[0]))


_NUMBERS: dict[str, Callable[..., Any]] = {"int": _whole, "float": _fraction}
_KINDS: dict[str, Callable[..., Any]] = {"type": _type}
_CACHED = functools._lru_cache_wrapper


def reads_numbers(module: nn.Module) -> bool:
    """Does the code of a model, or of one of its parts, call ``int`` or ``float``?"""
    return any(_functions(part, _NUMBERS) for part in module.modules())


@contextmanager
def sizes_stay_sizes(modules: Iterable[nn.Module], *, whole: bool = True) -> Iterator[None]:
    """In this thread, for calls of these modules. whole: also through ``int`` and ``float``."""
    thread = threading.get_ident()
    put: list[tuple[dict[str, Any], str]] = []
    instead = {**_NUMBERS, **_KINDS} if whole else _KINDS
    try:
        for part in modules:
            for name, function in _functions(part, instead, caches=True).items():
                vars(part)[name] = replaced_in(thread, function, _copied(_without_cache(function), instead)).__get__(
                    part
                )
                put.append((vars(part), name))
        yield
    finally:
        for attributes, name in put:
            attributes.pop(name, None)


_Instead = Mapping[str, Callable[..., Any]]


def _functions(part: nn.Module, instead: _Instead, *, caches: bool = False) -> dict[str, Any]:
    """The methods of a module to copy, by name: those that are not replaced on the object itself."""
    found: dict[str, Any] = {}
    for kind in reversed(type(part).__mro__):
        if f"{kind.__module__}.".startswith(_NOT_THEIRS):
            continue
        for name, function in vars(kind).items():
            found.pop(name, None)
            if not name.startswith("__") and _is_copied(function, instead, caches=caches):
                found[name] = function
    return {name: function for name, function in found.items() if name not in vars(part)}


def _is_copied(function: Any, instead: _Instead, seen: set[CodeType] | None = None, *, caches: bool) -> bool:
    """Does it, or a function that it finds among its globals, call one of these? caches: or is it under
    ``lru_cache``? seen: those that were asked before."""
    plain, seen = _without_cache(function), set() if seen is None else seen
    if not isinstance(plain, FunctionType) or (plain is not function and not caches):
        return False
    code, names = plain.__code__, plain.__globals__
    if f"{plain.__module__}.".startswith(_NOT_THEIRS) or code in seen or _needs_globals(code):
        return False
    seen.add(code)
    if plain is not function or (_called(code) & instead.keys()) - names.keys():
        return True
    return any(_is_copied(names.get(name), instead, seen, caches=caches) for name in _only_called(code))


def _without_cache(function: Any) -> Any:
    return function.__wrapped__ if isinstance(function, _CACHED) else function


def _names(code: CodeType) -> set[str]:
    return {name for each in codes_of(code) for name in each.co_names}


def _needs_globals(code: CodeType) -> bool:
    """Does it write globals, or ask for all of them?"""
    writes = ("STORE_GLOBAL", "DELETE_GLOBAL")
    return bool(_names(code) & {"globals", "eval", "exec"}) or any(
        step.opname in writes for each in codes_of(code) for step in _steps(each)
    )


@functools.cache
def _called(code: CodeType) -> frozenset[str]:
    """Of those names that have something in their place, the ones that matter here."""
    return _only_called(code) & {*_NUMBERS, *_KINDS}


@functools.cache
def _only_called(code: CodeType) -> frozenset[str]:
    """Names of globals that are called wherever they are read: not those that values are compared with."""
    reads = [
        (step.argval, bool((step.arg or 0) & 1))
        for each in codes_of(code)
        for step in _steps(each)
        if step.opname == "LOAD_GLOBAL"
    ]
    return frozenset(name for name, _ in reads) - {name for name, called in reads if not called}


@functools.cache
def _steps(code: CodeType) -> list[dis.Instruction]:
    return [*dis.get_instructions(code)]


class Names(dict[str, Any]):
    """The globals of a function, but for the names that it calls; functions found there are copied in turn."""

    def __init__(self, function: FunctionType, instead: _Instead) -> None:
        super().__init__()
        self._names, self._instead = function.__globals__, instead
        called = _only_called(function.__code__)
        self._others = (_called(function.__code__) & instead.keys()) - self._names.keys()
        self._functions = {name for name in called if _is_copied(self._names.get(name), instead, caches=True)}

    def __missing__(self, name: str) -> Any:
        if name in self._others:
            return self._instead[name]
        value = self._names[name]
        return _copied(_without_cache(value), self._instead) if name in self._functions else value


def _copied(function: FunctionType, instead: _Instead) -> FunctionType:
    names = Names(function, instead)
    copy = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__dict__ = function.__dict__  # the very same: it may keep something there
    return copy
