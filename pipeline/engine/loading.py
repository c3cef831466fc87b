"""Loads PyTorch's exporter without networkx, which it brings along for plans of training that no capture makes.

That library is hundreds of small files: half of the time that loading the exporter takes, where disks are slow most of
a second. A stand-in takes its place meanwhile; whoever asks it for something later is given the library's own.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
from types import ModuleType
from typing import Any

__all__ = ["load_exporter"]

_EXPORTER, _SPARED = "torch.export._trace", "networkx"
_ANNOTATIONS = {"DiGraph"}
"""Names that the exporter's modules ask for when they are loaded: to say what functions return."""


class _StandIn(ModuleType):
    """A module that is loaded when it is asked for more than an annotation of the exporter's."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__spec__ = importlib.util.find_spec(name)
        self._thread: int | None = threading.get_ident()

    def __getattr__(self, name: str) -> Any:
        if self._thread is not None and name.startswith("__") and name != "__path__":  # who goes through all modules
            raise AttributeError(name)
        if name in _ANNOTATIONS and self._thread == threading.get_ident():
            return Any
        self._leave()
        return getattr(importlib.import_module(self.__name__), name)

    def _leave(self) -> None:
        self._thread = None
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]


def load_exporter() -> None:
    """Import the exporter, unless it is there."""
    if _EXPORTER not in sys.modules and _SPARED not in sys.modules:
        stand_in = sys.modules[_SPARED] = _StandIn(_SPARED)
        try:
            importlib.import_module(_EXPORTER)
        finally:
            stand_in._leave()
