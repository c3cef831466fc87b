"""Where the rows of a boundary buffer live away from the device: pinned host memory, or a file.

Both keep the rows outermost, so that a band of them is one run of bytes whatever the strips that write and read it.
What they hold moves in the background: ``fetch`` and ``keep`` return at once, with something to wait for.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from tvae.pipeline.engine.ir.axis import Axis
from tvae.pipeline.engine.plan.bounds import Rows
from tvae.pipeline.errors import PlanError

__all__ = ["ROWS", "Boundary", "Callers", "Done", "OnDisk", "OnHost", "Pending", "RowSink", "RowSource"]

_MOST_BYTES = 1 << 30
"""Of one call to the system, which takes at most 2^31 - 4096."""
_BLOCK_BYTES = 1 << 28
"""Of a piece of pinned memory: PyTorch rounds each up to a power of two, and gives it to the next buffer afterwards."""


ROWS = 2
"""The dimension of the rows that come from a source or go to a sink."""


class Pending(Protocol):
    """Rows on their way."""

    def result(self) -> Any:
        """Wait for them; rows that were fetched."""


class Boundary(Protocol):
    """All rows of one value, away from the device."""

    bytes: int

    def fetch(self, lo: int, hi: int) -> Pending:
        """Begin to bring rows [lo, hi) to the device; ``result()`` is the value's tensor cut down to them."""

    def keep(self, lo: int, hi: int, rows: Tensor) -> Pending:
        """Begin to store rows [lo, hi). Nobody may write to ``rows`` until ``result()`` returns, nor need hold it."""

    def close(self) -> None:
        """Give the memory or the file back."""


class RowSource(Protocol):
    """An input that comes by rows: a tensor of this shape that need never exist as a whole."""

    @property
    def shape(self) -> tuple[int, ...]:
        """[N, C, H, W], the rows those of H; of a clip [N, C, T, H, W], the rows its frames."""

    @property
    def dtype(self) -> torch.dtype:
        """Of the rows."""

    @property
    def device(self) -> torch.device:
        """Where the rows come to."""

    def fetch(self, lo: int, hi: int) -> Pending:
        """Rows [lo, hi), on the device."""


class RowSink(Protocol):
    """An output that goes by rows."""

    def keep(self, lo: int, hi: int, rows: Tensor) -> Pending:
        """Take rows [lo, hi)."""


class Callers:
    """A source or sink as a boundary; what is both can be read where it was written."""

    def __init__(self, rows: Any) -> None:
        self._rows, self.bytes = rows, 0

    def fetch(self, lo: int, hi: int) -> Pending:
        """See ``Boundary``."""
        found: Pending = self._rows.fetch(lo, hi)
        return found

    def keep(self, lo: int, hi: int, rows: Tensor) -> Pending:
        """See ``Boundary``."""
        kept: Pending = self._rows.keep(lo, hi, rows)
        return kept

    def close(self) -> None:
        """The caller's own matter."""


class Done:
    """What is there already."""

    def __init__(self, value: Tensor | None = None) -> None:
        self._value = value

    def result(self) -> Tensor | None:
        """See ``Pending``."""
        return self._value


class _Record:
    """A value with its rows outermost, the rest in the order of its memory layout."""

    def __init__(self, shape: tuple[int, ...], axis: Axis, dtype: torch.dtype, channels_last: bool) -> None:
        self.axis, self.dtype = axis, dtype
        split = [*shape[: axis.dim], axis.outer, axis.rows, axis.inner, *shape[axis.dim + 1 :]]
        order = [d for d in range(len(split)) if d != axis.dim + 1]
        if channels_last and len(shape) in (4, 5) and axis.dim > 1:
            order.append(order.pop(1))
        self._order = [axis.dim + 1, *order]
        self._back = [self._order.index(d) for d in range(len(split))]
        self._rest = [split[d] for d in order]
        self.row_bytes = dtype.itemsize
        for n in self._rest:
            self.row_bytes *= n

    def empty(self, rows: int, **where: Any) -> Tensor:
        """Memory for so many rows."""
        return torch.empty([rows, *self._rest], dtype=self.dtype, **where)

    def of(self, value: Tensor) -> Tensor:
        """A (cropped) value as a record."""
        axis = self.axis
        return value.unflatten(axis.dim, (axis.outer, -1, axis.inner)).permute(self._order)

    def value(self, record: Tensor) -> Tensor:
        """A record as a (cropped) value."""
        dim = self.axis.dim
        value = record.permute(self._back).flatten(dim, dim + 2)
        if value.shape[0] == 1 and value.numel():
            # any step serves a single sample, but by a short one PyTorch takes channels for outermost: what it made of
            # such rows (a padded copy, say) would be laid out anew
            value = value.as_strided(value.shape, (value.numel(), *value.stride()[1:]))
        return value


class OnDisk:
    """Rows in a private file without a name, of its full size from the start: a full disk shows before any work.

    It is gone with the process, however that ends. Raises PlanError where the folder does not take it.
    """

    def __init__(
        self, shape: tuple[int, ...], axis: Axis, dtype: torch.dtype, device: torch.device, last: bool, folder: Path
    ) -> None:
        self._record, self._device = _Record(shape, axis, dtype, last), device
        self.bytes = self._record.row_bytes * axis.rows
        try:
            self._file = _private_file(folder, self.bytes)
        except OSError as error:
            raise _refused(self.bytes, folder, error) from None
        self._folder, self._pool = folder, ThreadPoolExecutor(1, "tvae-spill")

    def fetch(self, lo: int, hi: int) -> Future[Tensor]:
        """See ``Boundary``."""
        return self.gather([(lo, hi)])

    def keep(self, lo: int, hi: int, rows: Tensor) -> Future[None]:
        """See ``Boundary``."""
        return self.scatter([(lo, hi)], rows)

    def gather(self, runs: Sequence[Rows]) -> Future[Tensor]:
        """The same of several ranges of rows, one after the other."""
        return self._pool.submit(self._read, runs)

    def scatter(self, runs: Sequence[Rows], rows: Tensor) -> Future[None]:
        """The same into several ranges of rows, one after the other."""
        record = self._record.of(rows).contiguous().cpu()
        return self._pool.submit(self._write, runs, record)

    def close(self) -> None:
        """See ``Boundary``."""
        self._pool.shutdown()
        self._file.close()

    def _read(self, runs: Sequence[Rows]) -> Tensor:
        record = self._record.empty(sum(hi - lo for lo, hi in runs))
        for view, offset in self._places(runs, record):
            while view:
                got = self._at(offset, view[:_MOST_BYTES], write=False)
                if not got:
                    raise OSError("a spill file ends early")
                view, offset = view[got:], offset + got
        return self._record.value(record.to(self._device))

    def _write(self, runs: Sequence[Rows], record: Tensor) -> None:
        for view, offset in self._places(runs, record):
            while view:
                put = self._at(offset, view[:_MOST_BYTES], write=True)
                view, offset = view[put:], offset + put

    def _places(self, runs: Sequence[Rows], record: Tensor) -> Iterator[tuple[memoryview, int]]:
        """The bytes of each range of rows, and where in the file they are."""
        view, size = _bytes_of(record), self._record.row_bytes
        for lo, hi in runs:
            yield view[: (hi - lo) * size], lo * size
            view = view[(hi - lo) * size :]

    def _at(self, offset: int, view: memoryview, *, write: bool) -> int:
        fd = self._file.fileno()
        try:
            if hasattr(os, "pwrite"):
                return os.pwrite(fd, view, offset) if write else os.preadv(fd, [view], offset)
            self._file.seek(offset)  # Windows has no positioned calls; nobody but the one thread moves the position
            return int((self._file.write(view) if write else self._file.readinto(view)) or 0)
        except OSError as error:  # a disk that filled up where places are not kept free, or that fails
            raise _refused(self.bytes, self._folder, error) from None


class OnHost:
    """Rows in pinned host memory, copied on streams of their own beside the computation of a CUDA device."""

    def __init__(
        self, shape: tuple[int, ...], axis: Axis, dtype: torch.dtype, device: torch.device, last: bool
    ) -> None:
        self._record, self._device = _Record(shape, axis, dtype, last), device
        self.bytes = self._record.row_bytes * axis.rows
        self._block = max(1, _BLOCK_BYTES // max(1, self._record.row_bytes))
        """Rows of a piece of memory."""
        sizes = [min(self._block, axis.rows - lo) for lo in range(0, axis.rows, self._block)]
        self._memory = [self._record.empty(rows, pin_memory=device.type == "cuda") for rows in sizes]
        self._inwards, self._outwards = (_stream(device) for _ in range(2))

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
            return _OnStream(self._record.value(rows), self._inwards.record_event(), self._device)

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
            record.record_stream(self._outwards)
            return _OnStream(None, self._outwards.record_event(), self._device)

    def close(self) -> None:
        """See ``Boundary``."""
        self._memory.clear()

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


class _OnStream:
    """Rows that are there once the current stream has waited for an event; the host waits for nothing."""

    def __init__(self, value: Tensor | None, event: torch.cuda.Event, device: torch.device) -> None:
        self._value, self._event, self._device = value, event, device

    def result(self) -> Tensor | None:
        """The rows, for work that is started from now on."""
        torch.cuda.current_stream(self._device).wait_event(self._event)
        return self._value


def _stream(device: torch.device) -> torch.cuda.Stream | None:
    return torch.cuda.Stream(device) if device.type == "cuda" else None


def _bytes_of(record: Tensor) -> memoryview:
    flat: Any = record.reshape(-1).view(torch.uint8).numpy()
    return memoryview(flat)


def _refused(size: int, folder: Path, error: OSError) -> PlanError:
    why = error.strerror or error
    return PlanError(
        f"cannot spill {size / 2**30:.2f} GiB to {folder}: {why}; name another folder or allow more memory"
    )


def _private_file(folder: Path, size: int) -> Any:
    """A file without a name that has its place on the disk. Raises OSError, and then it is gone."""
    file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
    try:
        if size and hasattr(os, "posix_fallocate"):  # which refuses nothing at all
            os.posix_fallocate(file.fileno(), 0, size)
        else:
            os.ftruncate(file.fileno(), size)
    except OSError:
        file.close()
        raise
    return file
