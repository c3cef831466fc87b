"""What a segment in height bands costs: see ``footprint``, which counts all others."""

from __future__ import annotations

from collections.abc import Sequence

from tvae.pipeline.engine.plan.bounds import owned
from tvae.pipeline.engine.plan.schedule import PREFETCH, STAGES, Band, Schedule, Segment
from tvae.pipeline.engine.plan.strip_cost import Strip, count, memory_of

__all__ = ["Loop", "bands_cost"]

Loop = tuple[int, int, int, float, float, int, int, int]
"""All of a ``SegmentFootprint`` but what is stored, and whole values."""


def bands_cost(schedule: Schedule, segment: Segment, strips: Sequence[Strip]) -> Loop:
    """Of a segment in height bands: fetched and stored rows have their full height, all else is of one band."""
    ops, total, away = schedule.program.ops, schedule.program.rows, schedule.places
    memory = memory_of(ops, segment.body, ())
    last = {memory[i]: b for b in segment.body for i in ops[b].inputs}
    on_disk = {i for i, place in away.items() if place == "disk"}
    peak, halo, moved, spilled, starts, computed, needed, work = 0, 0, 0.0, 0.0, 0, 0.0, 0.0, 0.0
    by_bands = {i for i in {*segment.bands[0].cuts, *segment.bands[0].owns} if away.get(i) in ("host", "disk")}
    for each in strips:
        wanted, strip, times = each.share.wanted, each.rows, each.times
        own = {i: owned(axis.rows, strip, total) for i in wanted if (axis := ops[i].axis) is not None}
        comes, goes = segment.reads & wanted.keys() & away.keys(), set(segment.sinks) & wanted.keys() & away.keys()
        frames = {i: ops[i].row_bytes * count(wanted[i]) for i in comes}
        frames |= {i: ops[i].row_bytes * count(own[i]) for i in goes}  # of their whole height
        moved += times * sum(frames.values())
        spilled += times * sum(n for i, n in frames.items() if i in on_disk)
        at_once = (1 + PREFETCH) * sum(frames[i] for i in comes - by_bands) + sum(frames[i] for i in goes - by_bands)
        for band, alike in _bands_alike(segment.bands):
            alive = {i: band.program.ops[i].row_bytes * count(wanted[i]) for i in band.cuts.keys() & wanted.keys()}
            beside = at_once + PREFETCH * sum(alive[i] for i in comes & by_bands)
            for i in goes & by_bands:
                axis, lo, hi, _ = band.owns[i]
                beside += (STAGES - PREFETCH) * frames[i] * (hi - lo) / ops[i].shape[axis.dim]
            size = sum(alive.values())
            starts += times * alike * len(segment.body)
            for id_ in segment.body:
                op, whole = band.program.ops[id_], ops[id_]
                if id_ not in wanted or op.reduction or op.axis is None:
                    continue
                rows = count(wanted[id_])
                alive[id_] = 0 if memory[id_] != id_ else op.row_bytes * rows
                size += alive[id_]
                computed += times * alike * op.row_bytes * rows
                needed += times * alike * whole.row_bytes * count(own[id_]) / len(segment.bands)
                work += times * alike * op.work * rows / op.axis.rows if op.axis.rows else 0.0
                peak = max(peak, int(size + op.workspace(rows) + beside))
                for i in op.inputs:
                    if last[memory[i]] == id_:
                        size -= alive.pop(memory[i], 0)
    for band in segment.bands:
        halo = max(halo, band.units[1] - band.units[0])
    return peak, int(moved), halo, computed / needed if needed else 1.0, work, starts, 0, int(spilled)


def _bands_alike(bands: Sequence[Band]) -> list[tuple[Band, int]]:
    """Bands to look at, and how many each stands for: those of one height that see as much."""
    kinds: dict[tuple[int, tuple[int, int]], list[Band]] = {}
    for band in bands:
        kinds.setdefault((id(band.program), band.units), []).append(band)
    return [(alike[0], len(alike)) for alike in kinds.values()]
