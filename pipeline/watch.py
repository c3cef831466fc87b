"""Has a module changed since it was looked at? Answered in microseconds, before every call."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

__all__ = ["Watch"]


class Watch:
    """Remembers a module's tree: its submodules, weights, the memory they lie in, and attention processors."""

    def __init__(self, module: nn.Module) -> None:
        self._dicts: list[tuple[dict[str, Any], int]] = []
        self._weights: list[tuple[dict[str, Any], str, Tensor, int, int]] = []
        self._others: list[tuple[dict[str, Any], str, Any]] = []
        for part in module.modules():
            named: tuple[dict[str, Any], ...] = (part._modules, part._parameters, part._buffers)
            self._dicts += [(d, len(d)) for d in named]
            self._others += [(part._modules, name, child) for name, child in part._modules.items()]
            for d in named[1:]:
                for name, t in d.items():
                    if t is None:
                        self._others.append((d, name, None))
                    else:
                        self._weights.append((d, name, t, _version(t), t.data_ptr()))
            if "processor" in part.__dict__:
                self._others.append((part.__dict__, "processor", part.__dict__["processor"]))

    def unchanged(self) -> bool:
        """True while nothing was exchanged, moved or written to."""
        for d, count in self._dicts:
            if len(d) != count:
                return False
        for d, name, value in self._others:
            if d.get(name) is not value:
                return False
        return all(
            d.get(name) is t and _version(t) == version and t.data_ptr() == at
            for d, name, t, version, at in self._weights
        )


def _version(t: Tensor) -> int:
    return 0 if t.is_inference() else t._version
