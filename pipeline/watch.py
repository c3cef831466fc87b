"""Has a module changed since it was looked at? Answered in microseconds, before every call."""

from __future__ import annotations

from operator import is_
from typing import Any

from torch import Tensor, nn

__all__ = ["Watch"]


class Watch:
    """Remembers a module's tree: its submodules, weights, the memory they lie in, and attention processors."""

    def __init__(self, module: nn.Module) -> None:
        entries: list[tuple[dict[str, Any], str, Any]] = []
        self._dicts: list[dict[str, Any]] = []
        for part in module.modules():
            named: tuple[dict[str, Any], ...] = (part._modules, part._parameters, part._buffers)
            self._dicts += named
            entries += [(d, name, value) for d in named for name, value in d.items()]
            if "processor" in part.__dict__:
                entries.append((part.__dict__, "processor", part.__dict__["processor"]))
        self._sizes = [*map(len, self._dicts)]
        self._places = [(d, name) for d, name, _ in entries]
        self._values = [value for _, _, value in entries]
        self._weights = [value for value in self._values if isinstance(value, Tensor)]
        self._at = [t.data_ptr() for t in self._weights]
        self._counted = [t for t in self._weights if not t.is_inference()]  # the others count no changes
        self._versions = [t._version for t in self._counted]

    def unchanged(self) -> bool:
        """True while nothing was exchanged, moved or written to."""
        return (
            [*map(len, self._dicts)] == self._sizes
            and all(map(is_, [d.get(name) for d, name in self._places], self._values))
            and [t.data_ptr() for t in self._weights] == self._at
            and [t._version for t in self._counted] == self._versions
        )
