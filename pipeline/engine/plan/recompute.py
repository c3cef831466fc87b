"""Which values cost less to recompute in every segment that reads them than to move to the host or disk and back.

A convolution's result may cross a link of tens of GB/s, or be recomputed from what it was made of by a device of
hundreds of TFLOP/s. Priced with every buffer away from the device, value after value, the largest first; a value that
is recomputed needs its sources where it is read, which is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from tvae.pipeline.engine.plan.schedule import Schedule, movable

__all__ = ["worth_recomputing"]

_OVERLAP = 0.2
"""Share of the shorter of computing and copying by which the two together take longer than the longer."""


def worth_recomputing(build: Callable[[Collection[int]], Schedule], operations: float, link: float) -> frozenset[int]:
    """Ids of values. build: the schedule in which these are recomputed. operations, link: a second's, for the price."""
    chosen: frozenset[int] = frozenset()
    plan = build(chosen)
    ops = plan.program.ops
    price = _price(plan, operations, link)
    whole = {i for op in ops for i in op.whole_reads}
    for id_ in sorted(set(movable(plan)) - whole, key=lambda i: (-ops[i].bytes, i)):
        other = build(chosen | {id_})
        its = _price(other, operations, link)
        if its < price:
            chosen, price = chosen | {id_}, its
    return chosen


def _price(plan: Schedule, operations: float, link: float) -> float:
    ops, total = plan.program.ops, 0.0
    away = set(movable(plan))
    for segment in plan.segments:
        computing = sum(ops[i].work for i in segment.body) / operations
        copying = sum(ops[i].bytes for i in (*segment.reads, *segment.sinks) if i in away) / link
        total += max(computing, copying) + _OVERLAP * min(computing, copying)
    return total
