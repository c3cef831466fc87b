"""Optional cuts: where a long segment without barriers is divided, so that strips recompute less of each other.

A strip of a segment computes, beyond its own rows, those that later convolutions see. A cut stores what crosses it,
once, and the rows are not computed again. A cut pays if storing and reading what crosses it takes less
time than computing rows twice. The depth of the halo alone must not decide: it would cut where values are widest.
"""

from __future__ import annotations

from collections.abc import Mapping

from tvae.pipeline.engine.ir.program import Op, Program

__all__ = ["optional_cuts"]


def optional_cuts(
    program: Program, strip_rows: int, level: Mapping[int, int], operations: float, memory: float
) -> dict[int, int]:
    """Number of cuts before each op within its level (barriers passed), by op id; none where nothing is cut.

    strip_rows: of the input. operations, memory: floating-point operations and bytes a second, for the price.
    """
    strip_rows = min(strip_rows, program.own_rows)
    if strip_rows >= program.rows:
        return {}
    found: dict[int, int] = {}
    for n in sorted(set(level.values())):
        ids = [i for i in level if level[i] == n and _computed(program.ops[i])]
        depth = _depths(program, ids)
        steps = sorted(set(depth.values()))
        chosen = _cheapest(program, depth, steps, strip_rows, operations, memory)
        found |= {i: sum(d > cut for cut in chosen) for i, d in depth.items()}
    return found if any(found.values()) else {}


def _computed(op: Op) -> bool:
    return op.kind == "call" and (op.axis is not None or op.reduction is not None)


def _depths(program: Program, ids: list[int]) -> dict[int, float]:
    """How many rows of the input beyond its own the strip's result sees through the ops before it, by op id."""
    ops, depth = program.ops, dict[int, float]()
    here = set(ids)
    for id_ in sorted(ids):
        op = ops[id_]
        if op.axis is None or not op.axis.rows:
            depth[id_] = max((depth[i] for i in op.inputs if i in here), default=0.0)
            continue
        rows = op.axis.rows
        a = rows // 2
        b = min(rows, a + max(1, rows // 8))
        far = {i: 0.0 for i in op.inputs if i in here}
        for source, lo, hi in op.demand(a, b):
            axis = ops[source].axis
            if source in far and axis is not None and axis.rows:
                beyond = max(a / rows - lo / axis.rows, hi / axis.rows - b / rows, 0.0)
                far[source] = max(far[source], round(beyond * program.rows, 3))
        depth[id_] = max((depth[i] + reach for i, reach in far.items()), default=0.0)
    return depth


def _cheapest(
    program: Program, depth: Mapping[int, float], steps: list[float], strip_rows: int, operations: float, memory: float
) -> list[float]:
    """Depths to cut after: the division of the steps into runs of least price."""
    ops, at = program.ops, {d: n for n, d in enumerate(steps)}
    count = len(steps)
    time, moment = [0.0] * (count + 1), [0.0] * (count + 1)  # sums over the steps before: seconds, seconds·depth
    crossing = [0.0] * (count + 1)  # bytes; first as differences
    last_reader: dict[int, int] = {}
    for id_, d in depth.items():
        for i in ops[id_].inputs:
            last_reader[i] = max(last_reader.get(i, 0), at[d])
    for id_, d in depth.items():
        op = ops[id_]
        if op.axis is None:
            continue
        seconds = op.work / operations + op.bytes / memory
        time[at[d] + 1] += seconds
        moment[at[d] + 1] += seconds * d
        if not op.cheap and last_reader.get(id_, 0) > at[d]:
            crossing[at[d]] += op.bytes
            crossing[last_reader[id_]] -= op.bytes
    for n in range(count):
        time[n + 1] += time[n]
        moment[n + 1] += moment[n]
        crossing[n + 1] += crossing[n]
    price, before = [0.0] + [float("inf")] * count, [0] * (count + 1)
    for end in range(1, count + 1):
        stored = 2 * crossing[end - 1] / memory if end < count else 0.0
        for begin in range(end):
            recomputing = (steps[end - 1] * (time[end] - time[begin]) - (moment[end] - moment[begin])) * 2 / strip_rows
            total = price[begin] + recomputing + stored
            if total < price[end]:
                price[end], before[end] = total, begin
    cuts, end = [], before[count] if count else 0
    while end > 0:
        cuts.append(steps[end - 1])
        end = before[end]
    return cuts
