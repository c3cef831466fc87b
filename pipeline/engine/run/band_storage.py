"""A boundary buffer whose rows are frames, and of which bands of the height are fetched and stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from tvae.pipeline.engine.ir.axis import Axis
from tvae.pipeline.engine.ir.program import Op
from tvae.pipeline.engine.plan.bounds import Rows
from tvae.pipeline.engine.plan.schedule import Place
from tvae.pipeline.engine.run.disk_storage import OnDisk
from tvae.pipeline.engine.run.host_storage import OnHost
from tvae.pipeline.engine.run.storage import Boundary, Pending

__all__ = ["BandStorage", "elsewhere"]


class BandStorage:
    """Frames outermost, and in each frame its rows: a band of n frames is n ranges of bytes.

    rows, height: the axes of a value of this shape, both plain, in different dimensions. made: gives the buffer that
    holds it, a row of a frame a row, from its shape and axis.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        rows: Axis,
        height: Axis,
        channels_last: bool,
        made: Callable[[tuple[int, ...], Axis], OnHost | OnDisk],
    ) -> None:
        rest = [d for d in range(len(shape)) if d not in (rows.dim, height.dim)]
        if channels_last and len(shape) in (4, 5) and rest[:2] == [0, 1]:
            rest.append(rest.pop(1))
        self._order = [rows.dim, height.dim, *rest]
        self._back = [self._order.index(d) for d in range(len(shape))]
        self._height = shape[height.dim]
        count = shape[rows.dim] * self._height
        self._held = made((count, *(shape[d] for d in rest)), Axis(0, 1, count, 1))
        self.bytes = self._held.bytes

    def fetch(self, lo: int, hi: int, band: Rows | None = None) -> Pending:
        """Frames [lo, hi), or a band of their rows. See ``Boundary``."""
        return _Folded(self._held.gather(self._runs(lo, hi, band)), hi - lo, self._back)

    def keep(self, lo: int, hi: int, rows: Tensor, band: Rows | None = None) -> Pending:
        """Store frames [lo, hi), or a band of their rows. See ``Boundary``."""
        return self._held.scatter(self._runs(lo, hi, band), rows.permute(self._order).flatten(0, 1))

    def close(self) -> None:
        """See ``Boundary``."""
        self._held.close()

    def _runs(self, lo: int, hi: int, band: Rows | None) -> Sequence[Rows]:
        first, last = band or (0, self._height)
        if (first, last) == (0, self._height):
            return [(lo * self._height, hi * self._height)]
        return [(frame * self._height + first, frame * self._height + last) for frame in range(lo, hi)]


class _Folded:
    """Rows of frames being fetched, to be put together as frames."""

    def __init__(self, pending: Pending, frames: int, back: Sequence[int]) -> None:
        self._pending, self._frames, self._back = pending, frames, back

    def result(self) -> Tensor:
        """See ``Pending``."""
        rows: Tensor = self._pending.result()
        return rows.unflatten(0, (self._frames, -1)).permute(*self._back)


def elsewhere(
    op: Op, place: Place, device: torch.device, channels_last: bool, folder: Path, height: Axis | None
) -> Boundary:
    """The buffer of a value on the host or on disk. height: the axis of it where bands of frames come and go."""
    assert op.axis is not None

    def made(shape: tuple[int, ...], axis: Axis, last: bool = False) -> OnHost | OnDisk:
        what = shape, axis, op.dtype, device, last
        return OnHost(*what) if place == "host" else OnDisk(*what, folder)

    if height is not None:
        return BandStorage(op.shape, op.axis, height, channels_last, made)
    return made(op.shape, op.axis, channels_last)
