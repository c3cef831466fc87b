"""Rows of a buffer in pinned host memory."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from itertools import product

import torch
from torch import Tensor

from tvae.pipeline.engine.ir.axis import Axis
from tvae.pipeline.engine.plan.bounds import Rows
from tvae.pipeline.engine.run.pinned_memory import POOL, Block
from tvae.pipeline.engine.run.row_record import RowRecord
from tvae.pipeline.engine.run.storage import Done, Pending

__all__ = ["OnHost"]

_BLOCK_BYTES = 1 << 28
"""Of a piece of pinned memory: each is rounded up to a power of two, and the next buffer gets it afterwards."""


class OnHost:
    """Rows in pinned host memory, copied on streams of their own beside the computation of a CUDA device."""

    def __init__(
        self, shape: tuple[int, ...], axis: Axis, dtype: torch.dtype, device: torch.device, last: bool
    ) -> None:
        self._record, self._device = RowRecord(shape, axis, dtype, last), device
        self.bytes = self._record.row_bytes * axis.rows
        self._block = max(1, _BLOCK_BYTES // max(1, self._record.row_bytes))
        """Rows of a piece of memory."""
        sizes = [min(self._block, axis.rows - lo) for lo in range(0, axis.rows, self._block)]
        self._inwards, self._outwards = (_stream(device) for _ in range(2))
        self._memory = self._pinned(sizes) if device.type == "cuda" else [self._record.empty(rows) for rows in sizes]

    def fetch(self, lo: int, hi: int) -> Pending:
        """See ``Boundary``."""
        return self.gather([(lo, hi)])

    def keep(self, lo: int, hi: int, rows: Tensor) -> Pending:
        """See ``Boundary``."""
        return self.scatter([(lo, hi)], rows)

    def gather(self, runs: Sequence[Rows]) -> Pending:
        """The same of several ranges of rows, one after the other."""
        if self._inwards is None:
            pieces = [piece for _, piece in self._pieces(runs)]
            return Done(self._record.value((pieces[0] if len(pieces) == 1 else torch.cat(pieces)).to(self._device)))
        count = sum(hi - lo for lo, hi in runs)
        rows = self._record.empty(count, device=self._device)  # in the computation's stream, so that it is its memory
        self._inwards.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._inwards):
            for at, piece in self._pieces(runs):
                rows[at : at + len(piece)].copy_(piece, non_blocking=True)
            return _Coming(rows, self._record, self._inwards.record_event(), self._device)

    def scatter(self, runs: Sequence[Rows], rows: Tensor) -> Pending:
        """The same into several ranges of rows, one after the other."""
        record = self._record.of(rows)
        if self._outwards is None:
            for at, piece in self._pieces(runs):
                piece.copy_(record[at : at + len(piece)])
            return Done(None)
        record = record.contiguous()
        self._outwards.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._outwards):
            for at, piece in self._pieces(runs):
                piece.copy_(record[at : at + len(piece)], non_blocking=True)
            return _Leaving(record, self._outwards.record_event(), self._device)

    def close(self) -> None:
        """See ``Boundary``."""
        self._memory.clear()
        if self._device.type == "cuda":
            self._give_back()

    def _pinned(self, sizes: Sequence[int]) -> list[Tensor]:
        """Memory for so many rows each, until this object is closed or goes."""
        streams, blocks = [s for s in (self._inwards, self._outwards) if s is not None], list[Block]()
        self._give_back = weakref.finalize(self, _give_back, blocks, streams)
        self._give_back.atexit = False
        for rows in sizes:
            blocks.append(POOL.take(rows * self._record.row_bytes))
            for event, stream in product(blocks[-1].busy, streams):
                stream.wait_event(event)
        return [self._record.inside(block.memory, rows) for block, rows in zip(blocks, sizes, strict=True)]

    def _pieces(self, runs: Sequence[Rows]) -> list[tuple[int, Tensor]]:
        """Where ranges of rows lie, each piece with the row among them all that it begins with."""
        found, done = [], 0
        for at, hi in runs:
            while at < hi:
                block, first = divmod(at, self._block)
                piece = self._memory[block][first : first + hi - at]
                found.append((done, piece))
                at, done = at + len(piece), done + len(piece)
        return found or [(0, self._record.empty(0))]


class _Coming:
    """Rows that are there once the current stream has waited for an event; the host waits for nothing.

    They are put together for that stream, by it and in its memory: a copy that was made on the way would be read here
    while memory that it was made of, or its own, was given to others.
    """

    def __init__(self, rows: Tensor, record: RowRecord, event: torch.cuda.Event, device: torch.device) -> None:
        self._rows, self._record, self._event, self._device = rows, record, event, device

    def result(self) -> Tensor:
        """The rows, for work that is started from now on."""
        torch.cuda.current_stream(self._device).wait_event(self._event)
        return self._record.value(self._rows)


class _Leaving:
    """Rows that are read until an event.

    They are held here rather than by the allocator, which would let go of them whenever the copy is done: a host that
    runs ahead would find ever more of them waiting.
    """

    def __init__(self, rows: Tensor, event: torch.cuda.Event, device: torch.device) -> None:
        self._rows: Tensor | None = rows
        self._event, self._device = event, device

    def result(self) -> None:
        """Their memory is free for work that is started from now on."""
        torch.cuda.current_stream(self._device).wait_event(self._event)
        self._rows = None


def _give_back(blocks: Sequence[Block], streams: Sequence[torch.cuda.Stream]) -> None:
    POOL.give(blocks, [stream.record_event() for stream in streams])


def _stream(device: torch.device) -> torch.cuda.Stream | None:
    return torch.cuda.Stream(device) if device.type == "cuda" else None
