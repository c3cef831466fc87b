"""Weights by name, in the type and memory layout of a computation: cast once, and again only when they changed.

PyTorch counts writes to a tensor, but not those through ``tensor.data`` (averages of weights, merged adapters), nor
NumPy's. Where somebody else may write into the weights, they are watched: a checksum of all of them is taken at each
run, on a GPU beside it, and compared with that of the moment they were copied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from tvae.kernels.checksum import WeightChecksums
from tvae.kernels.checksum_on_host import HostChecksums
from tvae.pipeline.engine.ir.layout import memory_format
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
        channels_last: whether they are laid out so; otherwise they lie as they do. there: those that asking the source
        takes no memory for; None where it never does."""
        self._source, self._dtype, self._channels_last = source, dtype, channels_last
        self._there = there or (lambda: source([]))
        self._done: dict[str, tuple[Any, Tensor]] = {}
        self._asked: dict[str, Tensor] = {}
        self._watch: _Watch | None = None

    def __call__(self, names: Sequence[str]) -> dict[str, Tensor]:
        """The named weights. Raises UsageError for a name the source does not have."""
        have = self._source(names)
        missing = [n for n in names if n not in have]
        if missing:
            raise UsageError(f"the VAE has no weight '{missing[0]}' ({len(missing)} missing); are its files complete?")
        self._asked |= {name: have[name] for name in names}
        return {name: self._prepared(name, have[name]) for name in names}

    def to_come(self, names: Sequence[str]) -> list[str]:
        """Those of the names that a call for them would take memory for."""
        there = self._there()
        return [n for n in names if n not in there or not (self._is_ready(there[n]) or self._is_done(n, there[n]))]

    def forget(self) -> None:
        """Drop what was prepared."""
        self._done.clear()
        self._asked.clear()
        self._watch = None

    def look(self) -> Callable[[], bool]:
        """Have the device look whether a weight that was asked for was written to since. The answer waits for it."""
        old = self._watch
        if old is not None and old.weights == [*self._asked]:
            return old.look()
        self._watch = _Watch(self._asked, {} if old is None else old.sums)
        changed = self._watch.changed
        return lambda: changed

    def _prepared(self, name: str, weight: Tensor) -> Tensor:
        if self._is_ready(weight):
            self._done.pop(name, None)
            return weight.detach()
        if not self._is_done(name, weight):
            kind, layout = self._form(weight)
            copied = weight.detach().to(dtype=kind)
            self._done[name] = (_state(weight), copied if layout is None else copied.contiguous(memory_format=layout))
        return self._done[name][1]

    def _form(self, weight: Tensor) -> tuple[torch.dtype, torch.memory_format | None]:
        kind = self._dtype if weight.is_floating_point() else weight.dtype
        return kind, memory_format(weight.ndim, True) if self._channels_last else None

    def _is_ready(self, weight: Tensor) -> bool:
        kind, layout = self._form(weight)
        return kind == weight.dtype and (layout is None or weight.is_contiguous(memory_format=layout))

    def _is_done(self, name: str, weight: Tensor) -> bool:
        return name in self._done and self._done[name][0] == _state(weight)


class _Watch:
    """Checksums of weights on one device. known: those of some of them at an earlier time, by name."""

    def __init__(self, weights: Mapping[str, Tensor], known: Mapping[str, int]) -> None:
        self.weights = [*weights]
        tensors = [*weights.values()]
        self._cuda = bool(tensors) and tensors[0].device.type == "cuda"
        self._checksums = WeightChecksums(tensors) if self._cuda else HostChecksums([t.cpu() for t in tensors])
        self._now = self._checksums().cpu().clone()
        self._host = torch.empty_like(self._now, pin_memory=self._cuda)
        self._seen = torch.cuda.Event() if self._cuda else None
        self.sums = dict(zip(self.weights, self._now.tolist(), strict=True))
        self.changed = any(self.sums[name] != value for name, value in known.items() if name in self.sums)

    def look(self) -> Callable[[], bool]:
        self._host.copy_(self._checksums(), non_blocking=self._cuda)
        if self._seen is not None:
            self._seen.record()

        def written() -> bool:
            if self._seen is not None:
                self._seen.synchronize()
            return not torch.equal(self._host, self._now)

        return written


def _state(weight: Tensor) -> tuple[Any, ...]:
    """Differs when the weight moved or changed."""
    version = 0 if weight.is_inference() else weight._version
    return weight.data_ptr(), version, weight.dtype, weight.device, tuple(weight.shape)
