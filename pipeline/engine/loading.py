"""Loads PyTorch's exporter without libraries that it brings along and that no capture makes anything of.

networkx, for plans of training, is hundreds of small files: half of the time that loading the exporter takes, where
disks are slow most of a second. SymPy loads its tensors and physical units to ask of sizes whether they are some. A
stand-in takes a library's place meanwhile; who asks it for something later, or for more, is given the library's own.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["load_exporter", "plain_sizes"]

_EXPORTER = "torch.export._trace"
_PLANS = {"networkx": ("DiGraph",)}
"""Names that the exporter's modules ask for when they are loaded: to say what functions return."""
_OTHER_THAN_SIZES = {"sympy.tensor.tensor": ("TensExpr", "TensAdd"), "sympy.physics.units": ("Quantity",)}
"""Classes that sums, and simplified quotients, of sizes are asked about."""


class _StandIn(ModuleType):
    """A module that is loaded when it is asked for more than what is given, or by another thread.

    package: whether this thread may ask for parts of it; otherwise, asked for its names, it is none.
    """

    def __init__(self, name: str, given: Mapping[str, Any], package: bool) -> None:
        super().__init__(name)
        self.__spec__ = ModuleSpec(name, None)  # to look for its own would load the package that it is in
        self._given, self._package = given, package
        self._thread: int | None = threading.get_ident()

    def __getattr__(self, name: str) -> Any:
        own = self._thread == threading.get_ident()
        if self._thread is not None and name.startswith("__"):  # somebody goes through all modules, or imports a part
            if name != "__path__" or (own and not self._package):
                raise AttributeError(name)
        elif own and name in self._given:
            return self._given[name]
        self._leave()
        return getattr(importlib.import_module(self.__name__), name)

    def _leave(self) -> None:
        self._thread = None
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]


@contextmanager
def _without(libraries: Mapping[str, Mapping[str, Any]], package: bool) -> Iterator[None]:
    """Library -> names that are asked for meanwhile, and what they are then. One that is there stays."""
    stand_ins = [_StandIn(name, given, package) for name, given in libraries.items() if name not in sys.modules]
    sys.modules.update({each.__name__: each for each in stand_ins})
    try:
        yield
    finally:
        for each in stand_ins:
            each._leave()


def load_exporter() -> None:
    """Import the exporter, unless it is there."""
    if _EXPORTER not in sys.modules:
        with _without({name: dict.fromkeys(names, Any) for name, names in _PLANS.items()}, package=True):
            importlib.import_module(_EXPORTER)


@contextmanager
def plain_sizes() -> Iterator[None]:
    """Meanwhile this thread computes sizes with SymPy, which are no tensors and have no units."""
    from sympy import Basic

    def empty(name: str) -> type:
        return type(name, (Basic,), {})

    given = {name: {each: empty(each) for each in names} for name, names in _OTHER_THAN_SIZES.items()}
    with _without(given, package=False):
        yield
