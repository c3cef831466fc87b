"""The values that a run has beside the strip that it computes: whole ones, and the buffers between segments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import gettempdir

import torch
from torch import Tensor

from tvae.pipeline.engine.ir.axis import crop, shape_of_rows
from tvae.pipeline.engine.ir.layout import CLIP, empty_like_layout, memory_format
from tvae.pipeline.engine.ir.program import Op
from tvae.pipeline.engine.plan.schedule import Schedule
from tvae.pipeline.engine.run.band_storage import elsewhere
from tvae.pipeline.engine.run.rank_rows import Shifted
from tvae.pipeline.engine.run.run_bands import heights
from tvae.pipeline.engine.run.storage import Boundary

__all__ = ["Buffers"]


class Buffers:
    """Of one run. store: by op id, those on the device; away: those on the host, on disk or at the caller's; results:
    see ``execute``."""

    def __init__(
        self,
        schedule: Schedule,
        store: dict[int, Tensor],
        away: dict[int, Boundary],
        device: torch.device,
        channels_last: bool,
        spill: Path | None,
        results: Mapping[int, Tensor],
    ) -> None:
        self.store, self.away, self.device, self.rooms = store, away, device, schedule.rooms
        self._ops, self._places = schedule.program.ops, schedule.places
        self._channels_last, self._spill = channels_last, spill
        self._heights = heights(schedule)
        self.results = results

    def made_for(self, op: Op, like: Tensor | None = None) -> Tensor:
        """The buffer of a value that is stored. like: see ``made``."""
        first, last = self.rooms.get(op.id, (0, None))
        rows, result = None if last is None else last - first, self.results.get(op.id)
        shape = op.shape if rows is None or op.axis is None else tuple(shape_of_rows(op.shape, op.axis, rows))
        return result if result is not None and result.shape == shape else self.made(op, rows, like)

    def made(self, op: Op, rows: int | None = None, like: Tensor | None = None) -> Tensor:
        """Memory for a value, or for so many rows of it. like: rows whose layout it has."""
        layout = memory_format(len(op.shape), self._channels_last)
        shape = op.shape if rows is None or op.axis is None else shape_of_rows(op.shape, op.axis, rows)
        if like is not None and len(op.shape) > CLIP:
            return empty_like_layout(like, shape)
        return torch.empty(shape, dtype=op.dtype, device=self.device, memory_format=layout)

    def made_elsewhere(self, op: Op) -> Boundary:
        """A buffer on the host or on disk."""
        where = self._places[op.id], self.device, self._channels_last, self._spill or Path(gettempdir())
        how = *where, self._heights.get(op.id)
        if op.id not in self.rooms or op.axis is None:
            return elsewhere(op, *how)
        first, last = self.rooms[op.id]
        shape = tuple(shape_of_rows(op.shape, op.axis, last - first))
        return Shifted(elsewhere(replace(op, shape=shape, axis=replace(op.axis, rows=last - first)), *how), first)

    def read(self, id_: int, lo: int | None = None, hi: int | None = None) -> Tensor:
        """A value, or rows [lo, hi) of one that has an axis. See ``Read``."""
        value, op = self.store[id_], self._ops[id_]
        rows = value if lo is None or hi is None or op.axis is None else self.rows(id_, lo, hi)
        return self.laid_out(id_, rows) if op.kind == "input" else rows

    def rows(self, id_: int, lo: int, hi: int) -> Tensor:
        """Rows [lo, hi) of a buffer, which may begin with another row than the first."""
        axis, first = self._ops[id_].axis, self.rooms[id_][0] if id_ in self.rooms else 0
        assert axis is not None
        return crop(self.store[id_], axis, lo - first, hi - first)

    def laid_out(self, id_: int, part: Tensor) -> Tensor:
        """A part of an input, in the layout of the buffers."""
        layout = memory_format(part.ndim, self._channels_last)
        return part if self.store[id_].is_contiguous(memory_format=layout) else part.contiguous(memory_format=layout)
