"""A segment that is one strip of all rows, all of it on one device: its operations one after the other.

So are all segments of a picture that is not divided, and starting their operations is what a run costs the host. What
``StripRun`` asks in every run is told here once for a schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tvae.pipeline.engine.ir.axis import crop
from tvae.pipeline.engine.plan.bounds import demanded
from tvae.pipeline.engine.plan.schedule import Schedule, Segment
from tvae.pipeline.engine.plan.strip_ways import written_over
from tvae.pipeline.engine.plan.whole_values import last_uses
from tvae.pipeline.engine.run.buffers import Buffers
from tvae.pipeline.engine.run.compute_whole import compute_whole
from tvae.pipeline.engine.run.run_strip import statistics_of, take_statistics

__all__ = ["OneStrip"]


class _Part(NamedTuple):
    """What an operation of the strip does, at whatever size. over: the value that it may write over; stored: its result
    is kept; taken: the reductions that take its statistics; done: values that go after it, some of them from the
    buffers."""

    id: int
    over: int | None
    stored: bool
    produced: bool
    taken: Sequence[int]
    done: tuple[int, ...]
    early: tuple[int, ...]


class OneStrip:
    """What all runs of such a segment have in common."""

    def __init__(self, schedule: Schedule, segment: Segment) -> None:
        program, strip = schedule.program, segment.strips[0]
        self._ops, self._inputs, self._rows = program.ops, frozenset(program.inputs), strip[1] - strip[0]
        self._whole, (self._parts, self._ends) = segment.whole, _at_every_size(schedule, segment)
        self._present = demanded(program.ops, segment.body, segment.sinks, segment.reads, strip, program.rows)

    @staticmethod
    def fits(schedule: Schedule, segment: Segment) -> bool:
        """Is the segment one strip of all rows, for which no rows come from elsewhere or from strips before?"""
        program = schedule.program
        return segment.single and not segment.slides and program.ranks is None

    def run(self, buffers: Buffers, before_strip: Callable[[], None]) -> bool:
        """Make what the segment stores. False where memory is too small for one strip: what the segment reads, and the
        values that it computes before its strips, are there then. See ``execute`` for ``before_strip``."""
        ops, store, inputs, present = self._ops, buffers.store, self._inputs, self._present
        values: dict[int, Any] = {}

        def read(id_: int, lo: int | None = None, hi: int | None = None) -> Any:
            value = values.get(id_)
            if value is None:
                if id_ in inputs:
                    return buffers.read(id_, lo, hi)
                value, first = store[id_], 0
            else:
                rows = present[id_]
                if rows == (lo, hi):
                    return value
                first = rows[0]
            axis = ops[id_].axis
            return value if lo is None or hi is None or axis is None else crop(value, axis, lo - first, hi - first)

        compute_whole(ops, self._whole, self._ends, store, read, before_strip)
        before_strip()
        overwritten = [False]
        try:
            folded = self._strip(values, read, store, overwritten)
        except torch.OutOfMemoryError:
            if self._rows < 2 or overwritten[0]:
                raise
            values.clear()
            return False
        for id_, acc in folded.items():
            reduction = ops[id_].reduction
            assert reduction is not None
            store[id_] = reduction.finish(acc)
        return True

    def _strip(
        self, values: dict[int, Any], read: Any, store: dict[int, Tensor], overwritten: list[bool]
    ) -> dict[int, Any]:
        """The statistics of the strip. overwritten: is made true when a buffer that it reads is gone."""
        folded: dict[int, Any] = {}
        given: set[int] = set()  # reductions whose source gave their statistics
        ops, present = self._ops, self._present
        for id_, over, stored, produced, taken, done, early in self._parts:
            if id_ not in present:  # nothing wants any row of it
                continue
            op, (lo, hi), value = ops[id_], present[id_], None
            if op.reduction is not None:
                if id_ not in given:
                    folded[id_] = op.reduction.fold(folded.get(id_), read, lo, hi)
            elif produced and (stored or over in values):
                assert op.produce is not None
                place = read(over, lo, hi) if over in values else None
                value, statistics = op.produce(read, lo, hi, place, len(taken) > 0)
                if statistics is not None:
                    take_statistics(folded, ops, taken, statistics)
                    given.update(taken)
                del place, statistics
            else:
                value = op.run(read, lo, hi)
            if value is not None:
                values[id_] = value
                if stored:
                    store[id_] = value
                del value
            for i in done:
                values.pop(i, None)
            for i in early:
                overwritten[0] |= store.pop(i, None) is not None
        return folded


def _at_every_size(schedule: Schedule, segment: Segment) -> tuple[list[_Part], dict[int, list[int]]]:
    """What operations of the segment do, and when its whole values go."""
    key = OneStrip, segment.whole, segment.body, segment.sinks, segment.drops
    found: tuple[list[_Part], dict[int, list[int]]] | None = schedule.alike.get(key)
    if found is None:
        ops, sinks, early = schedule.program.ops, {*segment.sinks}, segment.goes_early(schedule.program)
        last_use = {i: b for b in segment.body for i in ops[b].inputs}
        statistics = statistics_of(ops, segment.sinks)
        parts = []
        for id_ in segment.body:
            op = ops[id_]
            over = written_over(op, segment.body, sinks, (), ())
            produced = op.produce is not None and (id_ in sinks or over is not None)
            done = tuple([i for i in op.inputs if last_use[i] == id_])
            gone = tuple([i for i in done if i in early])
            parts.append(_Part(id_, over, id_ in sinks, produced, statistics.get(id_, ()), done, gone))
        found = schedule.alike[key] = parts, last_uses(ops, segment)
    return found
