"""Rows of a buffer in a file. Reading and writing are done by a thread of its own."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tvae.pipeline.engine.ir.axis import Axis
from tvae.pipeline.engine.plan.bounds import Rows
from tvae.pipeline.engine.run.row_record import RowRecord
from tvae.pipeline.errors import PlanError

__all__ = ["OnDisk"]

_MOST_BYTES = 1 << 30
"""Of one call to the system, which takes at most 2^31 - 4096."""


class OnDisk:
    """Rows in a private file without a name, of its full size from the start: a full disk shows before any work.

    It is gone with the process, however that ends. Raises PlanError where the folder does not take it.
    """

    def __init__(
        self, shape: tuple[int, ...], axis: Axis, dtype: torch.dtype, device: torch.device, last: bool, folder: Path
    ) -> None:
        self._record, self._device = RowRecord(shape, axis, dtype, last), device
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
        return self._record.value(record).to(self._device)  # put together here: this thread has a stream of its own

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
            self._file.seek(offset)  # Windows has no positioned calls; only this one thread moves the position
            return int((self._file.write(view) if write else self._file.readinto(view)) or 0)
        except OSError as error:  # a disk that filled up where places are not kept free, or that fails
            raise _refused(self.bytes, self._folder, error) from None


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
