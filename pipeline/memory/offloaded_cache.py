"""A cache of a streaming model that is not kept on the device: with a GPU it is on the host, with a CPU on disk."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from pathlib import Path
from tempfile import gettempdir

import torch
from torch import Tensor

from tvae.pipeline.engine.ir.axis import Axis
from tvae.pipeline.engine.run.disk_storage import OnDisk
from tvae.pipeline.engine.run.host_storage import OnHost
from tvae.pipeline.engine.run.storage import Pending

__all__ = ["OffloadedCache", "height_of", "holdable"]

_MOVED_BYTES = 1 << 26
"""At a time, where all of a cache moves."""


def height_of(shape: tuple[int, ...]) -> int:
    """The dimension of the rows of a cache [..., H, W]."""
    return len(shape) - 2


def holdable(shape: tuple[int, ...]) -> bool:
    """Is this a map, of which rows can come and go?"""
    return len(shape) > 3 and 0 not in shape and shape[-2] > 1


class OffloadedCache:
    """Rows of the height of a tensor [..., H, W] come and go; see ``RowSource`` and ``RowSink`` of the engine."""

    def __init__(
        self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, channels_last: bool, spill: Path | None
    ) -> None:
        """device: where rows come to. spill: folder for what goes to disk."""
        self.shape, self.dtype, self.device, self.dim = shape, dtype, device, height_of(shape)
        what = shape, Axis(self.dim, 1, shape[self.dim], 1), dtype, device, channels_last
        on_disk = device.type == "cpu"
        self._rows = OnDisk(*what, spill or Path(gettempdir())) if on_disk else OnHost(*what)
        self._close = weakref.finalize(self, self._rows.close)  # with the stream it is a cache of, at the latest

    def fetch(self, lo: int, hi: int) -> Pending:
        """Rows [lo, hi), on the device."""
        return self._rows.fetch(lo, hi)

    def keep(self, lo: int, hi: int, rows: Tensor) -> Pending:
        """Take rows [lo, hi)."""
        return self._rows.keep(lo, hi, rows)

    def take(self, value: Tensor) -> OffloadedCache:
        """All of it, from wherever it is."""
        for lo, hi in self._bands():
            self.keep(lo, hi, value.narrow(self.dim, lo, hi - lo).to(self.device)).result()
        return self

    def cpu(self) -> Tensor:
        """All of it, as a tensor of the CPU."""
        value = torch.empty(self.shape, dtype=self.dtype)
        for lo, hi in self._bands():
            value.narrow(self.dim, lo, hi - lo).copy_(self.fetch(lo, hi).result())
        return value

    @property
    def nbytes(self) -> int:
        """Size of the whole."""
        return self._rows.bytes

    def close(self) -> None:
        """Give the memory or the file back."""
        self._close()

    def _bands(self) -> Iterator[tuple[int, int]]:
        rows = self.shape[self.dim]
        step = max(1, _MOVED_BYTES * rows // max(1, self.nbytes))
        return ((lo, min(lo + step, rows)) for lo in range(0, rows, step))
