"""What a buffer away from the device is to a run: rows are fetched and kept in the background.

``fetch`` and ``keep`` return at once, with something to wait for. Pinned host memory is in ``host_storage``, a file in
``disk_storage``; a caller may give and take rows, too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from tvae.pipeline.engine.ir.axis import Axis

__all__ = ["ROWS", "Boundary", "Callers", "Done", "OwnRows", "Pending", "RowSink", "RowSource"]

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
        """Begin to store rows [lo, hi). Do not write to ``rows`` until ``result()`` returns; it may be dropped."""

    def close(self) -> None:
        """Give the memory or the file back."""


class RowSource(Protocol):
    """An input that is read row by row: a tensor of this shape that need never exist as a whole."""

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


@dataclass(frozen=True)
class OwnRows:
    """The rows that this rank owns of a value, as a run of all ranks left them, or a buffer in which they lie, with
    room for those that the next run reads of others. shape, axis: of the whole value. own: the rows of every rank."""

    rows: Tensor
    shape: tuple[int, ...]
    axis: Axis
    own: tuple[tuple[int, int], ...]

    @property
    def dtype(self) -> torch.dtype:
        """Of the rows."""
        return self.rows.dtype

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return self.rows.device

    @property
    def nbytes(self) -> int:
        """Of the whole value."""
        return math.prod(self.shape) * self.rows.element_size()

    def to(self, device: torch.device) -> OwnRows:
        """The same there."""
        return replace(self, rows=self.rows.to(device))

    def fetch(self, lo: int, hi: int) -> Pending:
        """What rows [lo, hi) are only all ranks together know: a run of theirs takes these as they are."""
        raise AssertionError("own rows are an input of a run that ranks share")


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
