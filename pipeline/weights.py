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
        self, source: Callable[[Sequence[str]], Mapping[str, Tensor]], dtype: torch.dtype, channels_last: bool
    ) -> None:
        """source: the current weights, at least those of the names it is given. dtype: that of floating weights."""
        self._source, self._dtype, self._channels_last = source, dtype, channels_last
        self._done: dict[str, tuple[Any, Tensor]] = {}

    def __call__(self, names: Sequence[str]) -> dict[str, Tensor]:
        """The named weights. Raises UsageError for a name the source does not have."""
        have = self._source(names)
        missing = [n for n in names if n not in have]
        if missing:
            raise UsageError(f"the VAE has no weight '{missing[0]}' ({len(missing)} missing); are its files complete?")
        return {name: self._prepared(name, have[name]) for name in names}

    def forget(self) -> None:
        """Let go of what was prepared."""
        self._done.clear()

    def _prepared(self, name: str, weight: Tensor) -> Tensor:
        kind = self._dtype if weight.is_floating_point() else weight.dtype
        layout = memory_format(weight.ndim, self._channels_last)
        if kind == weight.dtype and weight.is_contiguous(memory_format=layout):
            self._done.pop(name, None)
            return weight.detach()
        version = 0 if weight.is_inference() else weight._version
        state = (weight.data_ptr(), version, weight.dtype, weight.device, tuple(weight.shape))
        if name not in self._done or self._done[name][0] != state:
            self._done[name] = (state, weight.detach().to(dtype=kind).contiguous(memory_format=layout))
        return self._done[name][1]
