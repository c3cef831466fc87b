"""What a strip does with one operation: decided here once, for the run and for the count of its memory beforehand."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import Enum, auto
from typing import NamedTuple

from tvae.pipeline.engine.ir.layout import CLIP
from tvae.pipeline.engine.ir.program import Op
from tvae.pipeline.engine.plan.bounds import Rows
from tvae.pipeline.engine.plan.sliding import Share

__all__ = ["StripOp", "StripWay", "fills_memory", "made_in_buffer", "strip_ops", "way_of", "written_over"]


class StripWay(Enum):
    """How a strip comes to its rows of a value."""

    FOLDED = auto()
    """A statistic: its own rows are added to those of the strips before."""
    CARRIED = auto()
    """An earlier strip saw as far: there are kept rows, and none to compute."""
    CHUNKED = auto()
    """An attention whose keys and values live elsewhere comes to them in chunks."""
    STORED = auto()
    """Computed, and its own rows are put into a buffer."""
    APPENDED = auto()
    """Computed into place, right after the kept rows."""
    COMPUTED = auto()
    """Computed for this strip alone, and joined to kept rows where there are any."""


def way_of(op: Op, share: Share, sinks: Collection[int], away: Collection[int]) -> StripWay:
    """sinks: values of the segment that are stored; away: values that live elsewhere than on the device."""
    first, last = share.fresh[op.id]
    if op.reduction:
        return StripWay.FOLDED
    if first >= last:
        return StripWay.CARRIED
    if op.chunked and any(i in away for i in op.chunked.sources):
        return StripWay.CHUNKED
    if op.id in sinks:
        return StripWay.STORED
    return StripWay.APPENDED if share.appended(op.id, op) else StripWay.COMPUTED


def made_in_buffer(op: Op, away: Collection[int], deferred: Collection[int], *, exact: bool, single: bool) -> bool:
    """Are the rows of a stored value computed right in its buffer? exact: they are the strip's own and no others.
    single: of one strip, whose value becomes the buffer. deferred: values that are written a strip later."""
    if not exact or single or not fills_memory(op) or op.axis is None:
        return False
    return op.axis.outer == 1 and op.id not in away and op.id not in deferred


def fills_memory(op: Op) -> bool:
    """Can rows of a value be computed right in a buffer that is there before them? The layout of one with more
    dimensions than a clip has is known only when some are computed."""
    return op.produce is not None or (op.into is not None and len(op.shape) <= CLIP)


def written_over(
    op: Op, here: Collection[int], sinks: Collection[int], away: Collection[int], kept: Collection[int]
) -> int | None:
    """The input that an operation may write its result over: a value of this strip alone, that nothing else reads.

    here: values that the strip has; kept: those of which rows are kept from strip to strip.
    """
    over = op.over
    alone = over is not None and over in here and over not in sinks and over not in away and over not in kept
    return over if alone else None


class StripOp(NamedTuple):
    """One operation of a strip: what does not change from run to run.

    rows: those that it computes. joins: kept rows belong to its value. over: see ``written_over``, for values of which
    no rows are kept. done: inputs that nothing later in the segment reads.
    """

    id: int
    rows: Rows
    way: StripWay
    joins: bool
    over: int | None
    done: tuple[int, ...]


def strip_ops(
    ops: Sequence[Op], body: Sequence[int], share: Share, sinks: Collection[int], away: Collection[int]
) -> list[StripOp]:
    """The operations of a strip in order. sinks, away: see ``way_of``."""
    last_use = {i: b for b in body for i in ops[b].inputs}
    found = []
    for id_ in body:
        if id_ in share.wanted:
            op, (first, last) = ops[id_], share.fresh[id_]
            joins = share.present[id_][0] < first or first >= last
            over = written_over(op, share.wanted, sinks, away, ())
            done = tuple(i for i in op.inputs if last_use[i] == id_)
            found.append(StripOp(id_, (first, last), way_of(op, share, sinks, away), joins, over, done))
    return found
