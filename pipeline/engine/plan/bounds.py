"""Bounds inference: which rows of every value one strip of a segment demands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tvae.pipeline.engine.ir.program import Op

__all__ = ["Rows", "demanded", "fresh_rows", "owned"]

Rows = tuple[int, int]
"""Rows [lo, hi)."""


def owned(rows: int, strip: Rows, total: int) -> Rows:
    """The rows a strip owns of a value with ``rows`` rows, where the strip is given in ``total`` rows of the input.

    Strips that tile the input own disjoint ranges that cover every value, whatever its resolution.
    """
    return strip[0] * rows // total, strip[1] * rows // total


def fresh_rows(rows: Rows, have: Rows | None) -> Rows:
    """Those of some rows that there are not yet; all of them where they begin outside of what there is."""
    if have is None or not have[0] <= rows[0] <= have[1]:
        return rows
    return min(have[1], rows[1]), rows[1]


def demanded(
    ops: Sequence[Op],
    body: Sequence[int],
    sinks: Iterable[int],
    stored: Iterable[int],
    strip: Rows,
    total: int,
    have: Mapping[int, Rows] | None = None,
) -> dict[int, Rows]:
    """Rows that one strip needs of every value in a segment, by op id.

    body: the ops the segment computes, in topological order. sinks: those it stores or reduces; a strip owes its owned
    rows of each. stored: buffers of earlier segments and inputs, whose rows are read. have: rows that earlier strips
    left, which demand nothing again. Values that nothing demands in this strip are absent.
    """
    have = have or {}
    wanted: dict[int, Rows] = {}

    def want(id_: int, lo: int, hi: int) -> None:
        if id_ in wanted:
            lo, hi = min(lo, wanted[id_][0]), max(hi, wanted[id_][1])
        wanted[id_] = (lo, hi)

    for id_ in sinks:
        op = ops[id_]
        axis = ops[op.reduction.source].axis if op.reduction else op.axis
        assert axis is not None
        lo, hi = owned(axis.rows, strip, total)
        if lo < hi:
            want(id_, lo, hi)
    buffers = set(stored)
    for id_ in reversed(body):
        if id_ not in wanted:
            continue
        rows = fresh_rows(wanted[id_], have.get(id_))
        if rows[0] >= rows[1]:
            continue
        for source, lo, hi in ops[id_].demand(*rows):
            want(source, lo, hi)
        for source in ops[id_].whole_reads:
            axis = ops[source].axis
            if axis is not None and source not in buffers:  # a constant that every strip makes for itself
                want(source, 0, axis.rows)
    return wanted
