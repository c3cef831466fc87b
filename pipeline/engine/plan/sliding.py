"""Sliding strips: each continues where the one before it ended, so that every row is computed once.

Windows see rows beyond a strip's own. Strips that stand alone compute those again, and what those see in turn, until
the next buffer: after many convolutions that is more than the strip itself. Strips that slide keep the last rows of the
values that the next strip sees again, and compute new ones only. They can run in one order alone, and most operations
join what was kept to what is new in a copy; the planner estimates which of the two is faster.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from tvae.pipeline.engine.ir.program import Op
from tvae.pipeline.engine.plan.bounds import Rows, demanded, fresh_rows

__all__ = ["Share", "shares"]


@dataclass(frozen=True)
class Share:
    """What one strip does in a segment, by op id.

    wanted: rows it needs. fresh: those of them that are computed (or fetched) now. present: rows its tensor has, kept
    ones followed by fresh ones. keeps: rows that later strips see again, to be kept when this one is done.
    """

    wanted: Mapping[int, Rows]
    fresh: Mapping[int, Rows]
    present: Mapping[int, Rows]
    keeps: Mapping[int, Rows] = field(default_factory=dict)

    def joined(self, id_: int) -> bool:
        """Are kept rows and new ones put together?"""
        return self.present[id_][0] < self.fresh[id_][0] < self.fresh[id_][1]

    def appended(self, id_: int, op: Op) -> bool:
        """Are new rows written right after the kept ones, without a copy?"""
        return self.joined(id_) and op.into is not None and op.axis is not None and op.axis.outer == 1


def shares(
    ops: Sequence[Op],
    body: Sequence[int],
    sinks: Iterable[int],
    reads: Collection[int],
    strips: Sequence[Rows],
    total: int,
    slid: Collection[int] = (),
    kept: Mapping[int, Rows] | None = None,
) -> list[Share]:
    """The shares of strips that run one after the other; see ``bounds.demanded`` for the other arguments.

    slid: values of which rows are kept from strip to strip, none where strips stand alone. kept: those there are now.
    """
    sinks, have = tuple(sinks), dict(kept or {})
    if not slid and not have:
        alone = [demanded(ops, body, sinks, reads, strip, total) for strip in strips]
        return [Share(wanted, wanted, wanted) for wanted in alone]
    found: list[tuple[dict[int, Rows], dict[int, Rows], dict[int, Rows]]] = []  # wanted, fresh, had before
    for strip in strips:
        wanted = demanded(ops, body, sinks, reads, strip, total, have)
        fresh = {i: fresh_rows(rows, have.get(i)) for i, rows in wanted.items()}
        found.append((wanted, fresh, dict(have)))
        for id_ in slid:
            if id_ in wanted:
                again = _again(wanted[id_], have.get(id_))
                first, last = have[id_] if again else wanted[id_]
                have[id_] = (first, max(last, wanted[id_][1]))
    later: dict[int, float] = {}  # the first row that strips to come take from those before them
    done: list[Share] = []
    for wanted, fresh, had in reversed(found):
        ends = {i: max(had[i][1], rows[1]) if _again(rows, had.get(i)) else rows[1] for i, rows in wanted.items()}
        keeps = {
            i: (int(first), ends.get(i, had.get(i, (0, 0))[1]))
            for i, first in later.items()
            if first < ends.get(i, had.get(i, (0, 0))[1])
        }
        for id_ in wanted.keys() & set(slid):
            if _again(wanted[id_], had.get(id_)):
                later[id_] = min(later.get(id_, inf), wanted[id_][0])
            else:
                later.pop(id_, None)
        present = {i: (int(min(later.get(i, rows[0]), rows[0])), ends[i]) for i, rows in wanted.items()}
        done.append(Share(wanted, fresh, present, keeps))
    return done[::-1]


def _again(rows: Rows, have: Rows | None) -> bool:
    """Do these rows begin within the kept ones, or right after them?"""
    return have is not None and have[0] <= rows[0] <= have[1]
