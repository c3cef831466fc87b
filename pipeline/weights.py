"""Weights by name, in the type and memory layout of a computation: cast once, and again only when they changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from tvae.pipeline.engine.layout import memory_format
from tvae.pipeline.errors import UsageError

__all__ = ["PreparedWeights"]


class PreparedWeights:
    """Casts and lays out weights on demand, and remembers the result for as long as the source stays what it was."""

    def __init__(
        self,
        source: Callable[[Sequence[str]], Mapping[str, Tensor]],
        dtype: torch.dtype,
        channels_last: bool,
        there: Callable[[], Mapping[str, Tensor]] | None = None,
    ) -> None:
        """source: the current weights, at least those of the names it is given. dtype: that of floating weights.
        there: those that asking the source takes no memory for; None where it never does."""
        self._source, self._dtype, self._channels_last = source, dtype, channels_last
        self._there = there or (lambda: source([]))
        self._done: dict[str, tuple[Any, Tensor]] = {}

    def __call__(self, names: Sequence[str]) -> dict[str, Tensor]:
        """The named weights. Raises UsageError for a name the source does not have."""
        have = self._source(names)
        missing = [n for n in names if n not in have]
        if missing:
            raise UsageError(f"the VAE has no weight '{missing[0]}' ({len(missing)} missing); are its files complete?")
        return {name: self._prepared(name, have[name]) for name in names}

    def to_come(self, names: Sequence[str]) -> list[str]:
        """Those of the names that a call for them would take memory for."""
        there = self._there()
        return [n for n in names if n not in there or not (self._is_ready(there[n]) or self._is_done(n, there[n]))]

    def forget(self) -> None:
        """Let go of what was prepared."""
        self._done.clear()

    def _prepared(self, name: str, weight: Tensor) -> Tensor:
        if self._is_ready(weight):
            self._done.pop(name, None)
            return weight.detach()
        if not self._is_done(name, weight):
            kind, layout = self._form(weight)
            self._done[name] = (_state(weight), weight.detach().to(dtype=kind).contiguous(memory_format=layout))
        return self._done[name][1]

    def _form(self, weight: Tensor) -> tuple[torch.dtype, torch.memory_format]:
        kind = self._dtype if weight.is_floating_point() else weight.dtype
        return kind, memory_format(weight.ndim, self._channels_last)

    def _is_ready(self, weight: Tensor) -> bool:
        kind, layout = self._form(weight)
        return kind == weight.dtype and weight.is_contiguous(memory_format=layout)

    def _is_done(self, name: str, weight: Tensor) -> bool:
        return name in self._done and self._done[name][0] == _state(weight)


def _state(weight: Tensor) -> tuple[Any, ...]:
    """Differs when the weight moved or changed."""
    version = 0 if weight.is_inference() else weight._version
    return weight.data_ptr(), version, weight.dtype, weight.device, tuple(weight.shape)
