"""Loads PyTorch's exporter without what it brings along for ``torch.compile`` and training, and no capture uses.

Plans of training with networkx, caches of compiled code with Inductor's code generators: three quarters of what
loading the exporter loads, where disks are slow half a second. SymPy loads its tensors and physical units to ask of
sizes whether they are some. Stand-ins take their places meanwhile; who asks for something later, or for more, is given
the modules' own.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["load_exporter", "plain_sizes"]

_EXPORTER = "torch.export._trace"
_COMPILER = {
    "torch._inductor.codecache": ("resolve_pre_grad_pass_timing",),
    "torch._functorch.partitioners": ("default_partition",),
    "torch._functorch._aot_autograd.autograd_cache": (
        *("AOTAutogradCache", "autograd_cache_key", "should_bundle_autograd_cache"),
        *("should_use_local_autograd_cache", "should_use_remote_autograd_cache"),
    ),
    "torch._functorch._aot_autograd.graph_compile": (
        *("aot_stage1_graph_capture", "aot_stage2_compile", "aot_stage2_export"),
    ),
}
"""Functions and a class that the exporter's modules ask for when they are loaded, for ``torch.compile`` to use."""
_OTHER_THAN_SIZES = {"sympy.tensor.tensor": ("TensExpr", "TensAdd"), "sympy.physics.units": ("Quantity",)}
"""Classes that sums, and simplified quotients, of sizes are asked about."""


class _Later:
    """What a module has by some name; it is loaded when this is used."""

    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name

    def __getattr__(self, name: str) -> Any:
        if name in ("_module", "_name"):  # of one that is being copied
            raise AttributeError(name)
        return getattr(self._own(), name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._own()(*args, **kwargs)

    def _own(self) -> Any:
        return getattr(importlib.import_module(self._module), self._name)


class _StandIn(ModuleType):
    """A module that is loaded when it is asked for more than what is given, or by another thread."""

    def __init__(self, name: str, given: Mapping[str, Any]) -> None:
        self._given = given
        self._thread: int | None = threading.get_ident()
        super().__init__(name)

    @property
    def __spec__(self) -> Any:
        """Whoever imports the module looks at this first. Its own would load the package that it is in; another thread
        is told to look again, and finds the module itself."""
        spec = ModuleSpec(self.__name__, None)
        if self._thread != threading.get_ident():
            self._leave()
            importlib.import_module(self.__name__)
            spec._initializing = True  # type: ignore[attr-defined]
        return spec

    @__spec__.setter
    def __spec__(self, _spec: Any) -> None:
        """Not when it is made."""

    def __getattr__(self, name: str) -> Any:
        own = self._thread == threading.get_ident()
        if self._thread is not None and name.startswith("__"):  # somebody goes through all modules, or imports a part
            if own or name != "__path__":
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
def _without(modules: Mapping[str, Mapping[str, Any]]) -> Iterator[None]:
    """Module -> names that are asked for meanwhile, and what they are then. One that is there stays."""
    stand_ins = [_StandIn(name, given) for name, given in modules.items() if name not in sys.modules]
    sys.modules.update({each.__name__: each for each in stand_ins})
    try:
        yield
    finally:
        for each in stand_ins:
            each._leave()


def load_exporter() -> None:
    """Import the exporter, unless it is there."""
    if _EXPORTER not in sys.modules:
        with _without({module: {name: _Later(module, name) for name in names} for module, names in _COMPILER.items()}):
            importlib.import_module(_EXPORTER)


@contextmanager
def plain_sizes() -> Iterator[None]:
    """Meanwhile this thread computes sizes with SymPy, which are no tensors and have no units."""
    with _without({module: {name: _empty(name) for name in names} for module, names in _OTHER_THAN_SIZES.items()}):
        yield


@cache
def _empty(name: str) -> type:
    """A class that nothing is of."""
    from sympy import Basic

    return type(name, (Basic,), {})
