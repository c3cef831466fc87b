"""Execute: Schedule + tensors -> tensors, segment by segment, strip by strip. The plain path, on one device."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tvae.pipeline.engine.ir.program import Op
from tvae.pipeline.engine.plan.bounds import Rows
from tvae.pipeline.engine.plan.schedule import PREFETCH, STAGES, Schedule, Segment
from tvae.pipeline.engine.plan.sliding import Share, shares
from tvae.pipeline.engine.plan.strip_ways import StripOp, fills_memory, strip_ops
from tvae.pipeline.engine.plan.whole_values import last_uses
from tvae.pipeline.engine.run.buffers import Buffers
from tvae.pipeline.engine.run.compute_whole import compute_whole
from tvae.pipeline.engine.run.exchange import Exchange
from tvae.pipeline.engine.run.give_back import give_back
from tvae.pipeline.engine.run.one_strip import OneStrip
from tvae.pipeline.engine.run.rank_rows import RankRows
from tvae.pipeline.engine.run.ring import Ring
from tvae.pipeline.engine.run.run_bands import reads_by_bands
from tvae.pipeline.engine.run.run_strip import StripRun
from tvae.pipeline.engine.run.storage import Boundary, Callers, OwnRows, RowSink, RowSource

__all__ = ["execute"]

_log = logging.getLogger("tvae")


@torch.no_grad()
def execute(
    schedule: Schedule,
    inputs: Sequence[Tensor | RowSource],
    weights: Mapping[str, Tensor],
    generator: torch.Generator | None = None,
    *,
    sinks: Mapping[int, RowSink] | None = None,
    constants: Mapping[int, Tensor] | None = None,
    channels_last: bool = False,
    spill: Path | None = None,
    before_strip: Callable[[], None] = lambda: None,
    exchange: Exchange | None = None,
    results: Mapping[int, Tensor] | None = None,
) -> list[Tensor | None]:
    """Run a schedule. Gives the outputs, None for those that go to a sink.

    inputs: the graph's inputs, on the device and in the type it was captured for; a source where the schedule has the
    input at the caller's. A list is emptied where some are handed over, so that their memory can be freed. sinks: by op
    id, for the outputs that are. weights: parameters, buffers and constants by name. generator: source of the noise a
    model injects; drawn whole and first, in the model's order. constants: values by op id that need not be computed
    (``constant_ops``). spill: folder for buffers on disk. channels_last: memory layout of inputs and buffers (weights
    are as given). before_strip: called before each, and before each large value that is computed whole. exchange: of a
    program that ranks share, with the others, which run it at the same time. Outputs are then this rank's rows of them,
    and inputs may be the rows that it holds, or ``OwnRows``. results: by op id, memory for outputs, which are computed
    right there where they can be; whether one was, its address says.
    """
    program = schedule.program
    device = inputs[0].device
    store: dict[int, Tensor] = {i: weights[name] for i, name in program.params.items()} | dict(constants or {})
    away: dict[int, Boundary] = {i: Callers(sink) for i, sink in (sinks or {}).items()}
    left: list[int] = []
    for id_, x in zip(program.inputs, inputs, strict=True):
        if isinstance(x, Tensor):
            store[id_] = x  # strips and bands lay out what they read of it
        elif isinstance(x, OwnRows):
            store[id_] = x.rows
            left.append(id_)
        else:
            away[id_] = Callers(x)
    for op in program.ops:
        if op.kind == "noise":
            store[op.id] = _noise(op, generator, device)
    if program.handed_over and isinstance(inputs, list):
        inputs.clear()
        del x  # the loop's last
    buffers = Buffers(schedule, store, away, device, channels_last, spill, results or {})
    together = None if exchange is None else RankRows(schedule, exchange, store, away, device, channels_last)
    try:
        if together is not None:
            together.begin([op.id for op in program.ops if op.kind == "noise"], left)
        for segment in schedule.segments:
            alone = None if away or schedule.places or together is not None else _one_strip(schedule, segment)
            if alone is None or not alone.run(buffers, before_strip):
                _Run(schedule, segment, buffers, before_strip, together).run(full=alone is not None)
            for op in (program.ops[i] for i in segment.sinks):
                if op.axis is not None and not op.axis.rows and op.id not in away:  # no strip computes it
                    store.setdefault(op.id, torch.empty(op.shape, dtype=op.dtype, device=device))
            for id_ in segment.drops:
                store.pop(id_, None)
                if id_ in away:
                    away.pop(id_).close()
    finally:
        for boundary in away.values():
            boundary.close()
    return [store.get(i) if together is None else together.result(i) for i in program.outputs]


def _one_strip(schedule: Schedule, segment: Segment) -> OneStrip | None:
    """The segment as one strip of all rows, where it is one; nothing of it may be elsewhere than on the device."""
    key = OneStrip, id(segment)
    if key not in schedule.facts:
        schedule.facts[key] = OneStrip(schedule, segment) if OneStrip.fits(schedule, segment) else None
    found: OneStrip | None = schedule.facts[key]
    return found


def _noise(op: Op, generator: torch.Generator | None, device: torch.device) -> Tensor:
    draw = torch.randn if op.name.startswith("randn") else torch.rand
    source = generator.device if generator is not None else device
    return draw(op.shape, generator=generator, dtype=op.dtype, device=source).to(device)


class _Run:
    """One segment over all its strips."""

    def __init__(
        self,
        schedule: Schedule,
        segment: Segment,
        buffers: Buffers,
        before_strip: Callable[[], None],
        together: RankRows | None,
    ) -> None:
        self.ops, self.total, self.places = schedule.program.ops, schedule.program.rows, schedule.places
        self.segment, self.before_strip, self.together = segment, before_strip, together
        self.buffers, self.store, self.away = buffers, buffers.store, buffers.away
        self.shares: dict[Any, list[tuple[Share, list[StripOp]]]] = schedule.shares
        self.strip = StripRun(schedule, segment, buffers)
        # a strip that has joined kept rows can be computed again only if everything that the segment reads is still
        # there, and in any order
        self.repeatable = not self.strip.reuse and "caller" not in {self.places.get(i) for i in segment.reads}

    def run(self, *, full: bool) -> None:
        """full: it was tried as one strip, which took too much memory; its whole values are there."""
        ops, store, segment = self.ops, self.store, self.segment
        if not full:
            ends = last_uses(ops, segment) if segment.whole else {}
            compute_whole(ops, segment.whole, ends, store, self.buffers.read, self.before_strip)
        for id_ in (self.strip.sinks & self.places.keys()) - self.away.keys():
            self.away[id_] = self.buffers.made_elsewhere(ops[id_])
        if not self.strip.single:
            self._allocate()
        folded: dict[int, Any] = {}
        strips = deque(segment.strips)
        if full:
            self._halve(strips)
        while strips:
            self._run_strips(strips, folded)
        if self.together is not None:
            for id_ in self.strip.sinks - self.places.keys() - store.keys():
                self._allocate_one(id_)  # no strip of this rank's has any row of it
            folded = self.together.end_segment(self.strip.sinks, folded)
        for id_, acc in folded.items():
            reduction = ops[id_].reduction
            assert reduction is not None
            store[id_] = reduction.finish(acc)

    def _allocate(self) -> None:
        """Buffers for the sinks that are computed right in them, or by bands, or take those of others. A single strip's
        values need none, they become the buffers; for the rest they are made when there is something to put in."""
        for id_ in self.strip.sinks - self.places.keys():
            if id_ in self.strip.reuse:
                self.store[id_] = self.store[self.strip.reuse[id_]]
            elif self.segment.bands or fills_memory(self.ops[id_]):
                self._allocate_one(id_)
            else:
                self.store.pop(id_, None)  # of a strip that failed

    def _allocate_one(self, id_: int) -> None:
        if not self.ops[id_].reduction:
            self.store[id_] = self.buffers.made_for(self.ops[id_])

    def _run_strips(self, strips: deque[Rows], folded: dict[int, Any]) -> None:
        """Run strips until none is left, or until one runs out of memory: it is then replaced by its two halves."""
        ops, segment = self.ops, self.segment
        have = {i: rows for i, (rows, _) in self.strip.kept.rows.items()}
        what = ops, segment.body, segment.sinks, segment.reads, list(strips), self.total
        key = id(segment), frozenset(self.away)
        same = len(strips) == 1 and not have and tuple(strips) == segment.strips
        known = self.shares.get(key) if same else None
        found = shares(*what, self.strip.slid, have) if known is None else [share for share, _ in known]
        if same and known is None:
            known = self.shares[key] = [(found[0], self._strip_ops(found[0]))]
        elsewhere = segment.reads & self.away.keys()
        reads = [{i: s.fresh[i] for i in elsewhere & s.fresh.keys() if s.fresh[i][0] < s.fresh[i][1]} for s in found]
        if segment.bands:
            reads = reads_by_bands(segment, found, self.away)
        ring = Ring(self.away, reads, STAGES, PREFETCH)
        full = False
        try:
            for n, share in enumerate(found):
                try:
                    self.before_strip()
                    todo = self._strip_ops(share) if known is None else known[n][1]
                    done, kept = self.strip.run(strips[0], share, todo, folded, ring)
                    self.strip.deferred.divide([later.wanted for later in found[n + 1 :]])
                except torch.OutOfMemoryError:
                    lo, hi = strips[0]
                    if hi - lo < 2 or self.strip.overwritten:
                        raise  # it cannot be made smaller, or must not, or what it read is gone
                    if self.strip.kept.joined:
                        if not self.repeatable:
                            raise
                        self.strip.kept.rows.clear()
                    full = True
                    break
                self.strip.deferred.write(self.store, self.buffers.rooms)
                folded.update(done)
                self.strip.kept.rows = kept
                strips.popleft()
        finally:  # rows that come for strips that do not are written until then
            ring.drain()
        if full:
            self._halve(strips)

    def _halve(self, strips: deque[Rows]) -> None:
        """Two strips in the place of the first, which took too much memory."""
        lo, hi = strips.popleft()
        strips.extendleft([((lo + hi) // 2, hi), (lo, (lo + hi) // 2)])
        _log.info("out of memory in a strip of %d rows: going on with half of that", hi - lo)
        if self.buffers.device.type == "cuda":
            give_back()
        if self.strip.single:
            self.strip.single = False
            self._allocate()

    def _strip_ops(self, share: Share) -> list[StripOp]:
        return strip_ops(self.ops, self.segment.body, share, self.strip.sinks, self.away)
