"""A strip of frames, computed in bands of the height (see ``plan.height_bands``).

Buffers elsewhere are fetched and stored by bands, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from tvae.pipeline.engine.ir.axis import Axis, crop
from tvae.pipeline.engine.ir.program import Op
from tvae.pipeline.engine.plan.bounds import Rows, owned
from tvae.pipeline.engine.plan.schedule import Band, Schedule, Segment
from tvae.pipeline.engine.plan.sliding import Share
from tvae.pipeline.engine.run.band_storage import BandStorage
from tvae.pipeline.engine.run.ring import Ring
from tvae.pipeline.engine.run.storage import Boundary

__all__ = ["BandRun", "heights", "reads_by_bands"]


def heights(schedule: Schedule) -> dict[int, Axis]:
    """The axis of the height of every value that some segment reads or gives by bands."""
    found: dict[int, Axis] = {}
    for segment in schedule.segments:
        for band in segment.bands[:1]:
            found |= {i: axis for i, (axis, *_) in band.cuts.items()} | {i: axis for i, (axis, *_) in band.owns.items()}
    return found


def reads_by_bands(
    segment: Segment, found: Sequence[Share], away: Mapping[int, Boundary]
) -> list[dict[int, tuple[Any, ...]]]:
    """What the ring fetches for every band of every strip; buffers that are not stored in bands come with the first."""
    reads: list[dict[int, tuple[Any, ...]]] = []
    for share in found:
        elsewhere = {i: share.wanted[i] for i in segment.reads & away.keys() & share.wanted.keys()}
        for n, band in enumerate(segment.bands):
            cuts = {i: (*rows, band.cuts[i][1:]) for i, rows in elsewhere.items() if isinstance(away[i], BandStorage)}
            reads.append(cuts | ({} if n else {i: rows for i, rows in elsewhere.items() if i not in cuts}))
    return reads


class BandRun:
    """One strip of a segment in bands.

    frames: the strip, and how many frames there are. store, away: buffers and whole values by op id. made: gives memory
    for so many frames of a value; laid_out: a part of an input as the buffers are.
    """

    def __init__(
        self,
        ops: Sequence[Op],
        segment: Segment,
        share: Share,
        frames: tuple[Rows, int],
        store: Mapping[int, Tensor],
        away: Mapping[int, Boundary],
        ring: Ring,
        made: Callable[[Op, int], Tensor],
        laid_out: Callable[[int, Tensor], Tensor],
    ) -> None:
        self._ops, self._segment, self._share = ops, segment, share
        self._store, self._away, self._ring, self._laid_out = store, away, ring, laid_out
        self._last = {i: b for b in segment.body for i in ops[b].inputs}
        self._owned: dict[int, Rows] = {}
        self._into: dict[int, Tensor] = {}  # frames of sinks, of their whole height
        for id_ in set(segment.sinks) & share.wanted.keys():
            op = ops[id_]
            if op.axis is None or op.reduction:
                continue
            self._owned[id_] = first, last = owned(op.axis.rows, *frames)
            if id_ not in away:
                self._into[id_] = crop(store[id_], op.axis, first, last)
            elif not isinstance(away[id_], BandStorage):
                self._into[id_] = made(op, last - first)
        self._whole: dict[int, Tensor] = {}  # frames of reads, of their whole height

    def run(self, folded: dict[int, Any]) -> None:
        """Compute the strip: its frames of the sinks, and statistics into ``folded``."""
        for band in self._segment.bands:
            self._band(band, folded)
        for id_ in self._into.keys() & self._away.keys():
            self._ring.keep(id_, *self._owned[id_], self._into[id_])

    def _band(self, band: Band, folded: dict[int, Any]) -> None:
        ops, wanted = band.program.ops, self._share.wanted
        fetched = self._ring.take()
        values = {i: fetched.pop(i) for i in tuple(fetched) if isinstance(self._away[i], BandStorage)}
        self._whole |= fetched
        for id_, (axis, first, last) in band.cuts.items():
            if id_ in wanted and id_ not in values:
                cut = crop(self._frames(id_, *wanted[id_]), axis, first, last)
                values[id_] = self._laid_out(id_, cut) if ops[id_].kind == "input" and id_ in self._store else cut

        def read(id_: int, lo: int | None = None, hi: int | None = None, /) -> Tensor:
            value = values[id_] if id_ in values else self._store[id_]
            axis = ops[id_].axis
            if id_ not in values or lo is None or hi is None or axis is None:
                return value
            return crop(value, axis, lo - wanted[id_][0], hi - wanted[id_][0])

        def own(id_: int, lo: int | None = None, hi: int | None = None, /) -> Tensor:
            axis, first, last, at = band.owns[id_]
            return crop(read(id_, lo, hi), axis, at, at + last - first)

        for id_ in self._segment.body:
            if id_ not in wanted:
                continue
            op, rows = ops[id_], wanted[id_]
            _, first, last, _ = band.owns.get(op.reduction.source if op.reduction else id_, (None, 0, 0, 0))
            if not op.reduction:
                values[id_] = op.run(read, *rows)
                if id_ in self._owned and first < last:
                    self._keep(id_, band, own(id_, *self._owned[id_]))
            elif first < last:
                folded[id_] = op.reduction.fold(folded.get(id_), own, *rows)
            for i in op.inputs:
                if self._last[i] == id_:
                    values.pop(i, None)

    def _keep(self, id_: int, band: Band, rows: Tensor) -> None:
        """Store what a band owns of the strip's frames of a sink."""
        axis, first, last, _ = band.owns[id_]
        if id_ in self._into:
            crop(self._into[id_], axis, first, last).copy_(rows)
        else:
            self._ring.keep(id_, *self._owned[id_], rows, (first, last))

    def _frames(self, id_: int, lo: int, hi: int) -> Tensor:
        """Frames of a buffer, of their whole height."""
        axis = self._ops[id_].axis
        if id_ in self._whole:
            return self._whole[id_]
        return self._store[id_] if axis is None else crop(self._store[id_], axis, lo, hi)
