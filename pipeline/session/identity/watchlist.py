"""Has anything changed that was looked at? Answered within microseconds, before every call.

Dictionaries are compared with copies of themselves, all of them in one comparison that runs in C and stops at the
identity of what they hold. What must not be compared by value (tensors, arrays, objects whose ``==`` is their own) is
compared by identity. Of numbers the type counts, too (1 is no True), but for those inside of tuples, of PyTorch's own
layers, and the sign of zero.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from itertools import chain
from operator import attrgetter, itemgetter
from types import BuiltinFunctionType, CellType, FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from tvae.pipeline.session.identity.code import PLAIN
from tvae.pipeline.session.identity.containers import copied, entries, members, reads_otherwise

__all__ = ["Watchlist"]

_log = logging.getLogger("tvae")

_COMPARED: set[type] = {*PLAIN, dict, list, set, frozenset, tuple, type, FunctionType, BuiltinFunctionType, ModuleType}
_NUMBERS = (int, float, bool, complex)
_stride, _numel = Tensor.stride, Tensor.numel
_data_ptr, _version, _dtype = Tensor.data_ptr, attrgetter("_version"), attrgetter("dtype")
_parts_of_function = attrgetter("__code__", "__defaults__", "__kwdefaults__")


class Watchlist:
    """Filled while a module is looked at; ``seal`` ends that."""

    def __init__(self) -> None:
        self._empty: list[Any] = []
        self._live: list[Any] = []
        self._copies: list[Any] = []
        self._otherwise: list[tuple[Any, list[Any]]] = []
        self._same: list[tuple[Any, Any, Any]] = []
        self._ordered: list[dict[Any, Any]] = []
        self._objects: list[Any] = []
        self._functions: list[FunctionType] = []
        self._cells: list[tuple[CellType, Any]] = []
        self._views: list[tuple[Callable[[], Any], Any]] = []
        self._tensors: dict[int, Tensor] = {}
        self._names: dict[int, tuple[Mapping[str, Any], dict[str, Any]]] = {}
        self._sized: list[Mapping[str, Any]] = []
        self._numbers: list[tuple[Callable[[Any], Any], Any]] = []
        self._safe: dict[type, bool] = dict.fromkeys(_COMPARED, True)
        self._globals: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {}
        self.caches: list[Any] = []
        """Functions under ``lru_cache``: not watched, for what they keep changes no result."""

    # -- what to watch ---------------------------------------------------------------------------------------------
    def container(
        self, live: Any, leave_out: Callable[[Any], Collection[str]] | None = None, *, numbers: bool = True
    ) -> None:
        """A dictionary, list, set or deque: what it holds, and the types of its numbers, but for names that do not
        matter. numbers: do those types?"""
        if reads_otherwise(type(live)):  # by identity alone, since its own ``==`` may say anything
            self._otherwise.append((live, members(live)))  # which keeps alive what it held: no id comes twice
            self.view(lambda: [*map(id, members(live))])
            return
        left: Collection[str] = ()
        if leave_out is not None and (left := leave_out(live)):
            self.view(lambda: {k: v for k, v in live.items() if k not in leave_out(live)})
        elif not live:
            self._empty.append(live)
        else:
            self._live.append(live)
            self._copies.append(copied(live))
        held = entries(live) if isinstance(live, dict) else [] if isinstance(live, set) else [*enumerate(live)]
        if numbers:
            self._types_at(live, [key for key, value in held if type(value) in _NUMBERS and key not in left])
        for key, value in held:
            if not self._compares(value) and key not in left:
                self._same.append((live, key, value))

    def _types_at(self, live: Any, keys: list[Any]) -> None:
        if keys:
            self._numbers.append((itemgetter(keys[0], *keys), live))  # of a single key it would give no tuple

    def order(self, live: dict[Any, Any]) -> None:
        """The order of a dictionary's keys."""
        if len(live) > 1 and not reads_otherwise(type(live)):  # whose order is watched with what they hold
            self._ordered.append(live)

    def view(self, look: Callable[[], Any]) -> None:
        """What a function returns."""
        self._views.append((look, look()))

    def kind(self, thing: Any) -> None:
        """An object's class."""
        self._objects.append(thing)

    def name(self, space: Mapping[str, Any], name: str, value: Any) -> None:
        """What a name stands for in a module or class."""
        if isinstance(space, dict):
            self._globals.setdefault(id(space), (space, {}))[1][name] = value
        if self._compares(value):
            self._names.setdefault(id(space), (space, {}))[1][name] = value
        else:
            self._same.append((space, name, value))

    def size(self, space: Mapping[str, Any]) -> None:
        """How many names a class has: one that is added may hide another."""
        self._sized.append(space)

    def function(self, function: FunctionType) -> None:
        """A function's code, defaults and cells."""
        self._functions.append(function)

    def cell(self, cell: CellType) -> None:
        """What a closure holds."""
        try:
            self._cells.append((cell, cell.cell_contents))
        except ValueError:  # not filled yet
            self.view(lambda: cell == CellType())

    def tensor(self, tensor: Tensor) -> None:
        """Where a tensor lies (one that lies nowhere: its type), and that nothing was written to it."""
        self._tensors[id(tensor)] = tensor

    def _compares(self, value: Any) -> bool:
        """May it be compared with ``==``? Where that is the default, it is identity."""
        kind = type(value)
        if issubclass(kind, Tensor):
            return value.numel() != 1  # comparing arrays gives no single truth value and raises: counted as a change
        known = self._safe.get(kind)
        if known is None:
            known = self._safe[kind] = kind.__eq__ is object.__eq__ or issubclass(kind, dict | list | tuple | set)
        return known

    # -- what was looked at ----------------------------------------------------------------------------------------
    def containers(self) -> list[Any]:
        """Those that code may write to."""
        return [*self._live, *self._empty, *(live for live, _ in self._otherwise)]

    def functions(self) -> list[FunctionType]:
        """All that were met, but for libraries'."""
        return [*self._functions]

    def globals(self) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """The names of modules, and what some of their names stood for."""
        return [*self._globals.values()]

    # -- the answer ------------------------------------------------------------------------------------------------
    def seal(self) -> None:
        """Everything has been named; from now on ``unchanged`` may be asked."""
        plain = [t for t in self._tensors.values() if type(t) in (Tensor, nn.Parameter, nn.Buffer)]
        tensors = [t for t in plain if t.layout is torch.strided]
        self._placed = [t for t in tensors if t.data_ptr()]
        self._unplaced = [t for t in tensors if not t.data_ptr()]  # on meta, or empty: only its type can tell
        self._counted = [t for t in self._tensors.values() if not t.is_inference()]  # the others count no writes
        self._getters: list[tuple[Callable[[Any], Any], Mapping[str, Any]]] = [
            (itemgetter(*names), space) for space, names in self._names.values()
        ]
        for space, names in self._names.values():
            self._types_at(space, [name for name in names if type(space[name]) in _NUMBERS])
        self._got = [get(space) for get, space in self._getters]
        self._fast = self._facts()

    def unchanged(self) -> bool:
        """True while nothing that was named has changed."""
        try:
            return (
                not any(self._empty)
                and self._live == self._copies
                and self._facts() == self._fast
                and [get(space) for get, space in self._getters] == self._got
                and all(space[name] is value for space, name, value in self._same)
                and all(cell.cell_contents is value for cell, value in self._cells)
                and all(look() == seen for look, seen in self._views)
            )
        except Exception as error:  # a name is gone, or a class of the model's own cannot be compared: a change, too
            _log.debug("a model has changed: %s", error)
            return False

    def _facts(self) -> list[list[Any]]:
        """Told apart by ``==`` in any case."""
        return [
            [*map(_data_ptr, self._placed)],
            [*map(_stride, self._placed)],
            [*map(_numel, self._placed)],
            [*map(type, chain.from_iterable([get(live) for get, live in self._numbers]))],
            [*map(_version, self._counted)],
            [*map(_dtype, self._unplaced)],
            [*map(type, self._objects)],
            [*chain(*self._ordered)],
            [*map(len, self._sized)],
            [*map(_parts_of_function, self._functions)],
        ]
