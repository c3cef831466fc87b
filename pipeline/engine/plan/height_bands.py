"""Bands of rows inside a strip of frames: what a segment whose strips divide time sees along the height.

A strip of one frame of a large picture can still be too much. Between two barriers its rows see so many rows around
them and no others, so that it can be computed band by band: by the same operations, lowered for a clip as high as the
band and what it sees, on rows that are cut out of the buffers. What the cut spoils lies outside of the rows that the
band owns. Which rows a band sees is what the same graph, lowered with its strips along the height, demands; where that
has a barrier of its own (statistics of each frame, attention), or rows that are counted from the top, there are none.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import cached_property

from tvae.pipeline.engine.ir.axis import Axis
from tvae.pipeline.engine.ir.graph import Graph
from tvae.pipeline.engine.ir.program import Op, Program
from tvae.pipeline.engine.ir.sizes import Size
from tvae.pipeline.engine.plan.bounds import Rows, owned
from tvae.pipeline.engine.plan.schedule import Band, Segment
from tvae.pipeline.errors import UnsupportedOp

__all__ = ["HeightBands"]

_PROBES = (64, 128, 256, 512, 32, 16, 8)
"""Heights at which to see how many rows a value has for each row of the input."""


class HeightBands:
    """See the module's docstring. graph, sizes: what ``program`` was lowered from, along time. lowered: lowers a graph
    at other sizes."""

    def __init__(
        self,
        graph: Graph,
        sizes: Mapping[str, int],
        program: Program,
        lowered: Callable[[Graph, Mapping[str, int]], Program],
    ) -> None:
        self._graph, self._sizes, self._program, self._lowered = graph, dict(sizes), program, lowered
        self._symbol = _height_of(graph)
        self._programs: dict[int, Program | None] = {}
        self._found: dict[tuple[tuple[int, ...], tuple[int, ...], int], tuple[Band, ...]] = {}

    @property
    def rows(self) -> int:
        """Of the input's height."""
        return self._sizes[self._symbol] if self._symbol else 1

    def bands(self, segment: Segment, rows: int) -> tuple[Band, ...]:
        """Bands that own about so many rows of the input each; () where the segment cannot be computed in bands."""
        key = segment.body, segment.sinks, rows
        if key not in self._found:
            self._found[key] = self._divided(segment, rows)
        return self._found[key]

    def _divided(self, segment: Segment, rows: int) -> tuple[Band, ...]:
        ops, height = self._program.ops, self._height
        if height is None or self._rates is None or any(ops[i].whole_reads for i in segment.body):
            return ()
        reductions = [ops[i].reduction for i in segment.sinks]
        if any(r is not None and ops[i].inputs != (r.source,) for i, r in zip(segment.sinks, reductions, strict=True)):
            return ()
        given = {i if r is None else r.source for i, r in zip(segment.sinks, reductions, strict=True)}
        read = {i for i in segment.reads if ops[i].axis is not None}
        axes = {i: self._plain_axis(i) for i in given | read}
        if None in axes.values():
            return ()
        whole = self._seen({self._op[i]: (0, height.ops[self._op[i]].axis.rows) for i in given}, read)  # type: ignore[union-attr]
        if whole is None:
            return ()
        if not all(self._rates.get(i) for i in whole):
            return ()
        unit = math.lcm(*(rate.denominator for rate in self._rates.values()))  # the graph may serve no other heights
        step = -(-rows // unit) * unit
        if step >= self.rows:
            return ()
        found = [self._band((lo, min(lo + step, self.rows)), unit, given, read) for lo in range(0, self.rows, step)]
        return tuple(band for band in found if band) if all(found) else ()

    def _band(self, own: Rows, unit: int, given: set[int], read: set[int]) -> Band | None:
        """The band that owns these rows of the input."""
        assert self._rates is not None
        wanted = {i: owned(self._axis(i).rows, own, self.rows) for i in given}
        seen = self._seen({self._op[i]: rows for i, rows in wanted.items() if rows[0] < rows[1]}, read)
        if seen is None:
            return None
        first, last = own
        for id_ in {self._op[i] for i in read} & seen.keys():
            first = min(first, math.floor(seen[id_][0] / self._rates[id_]))
            last = max(last, math.ceil(seen[id_][1] / self._rates[id_]))
        first = max(0, first // unit * unit)
        last = min(self.rows, -(-last // unit) * unit)
        program = self._at(last - first)
        if program is None:
            return None
        cuts: dict[int, tuple[Axis, int, int]] = {}
        owns: dict[int, tuple[Axis, int, int, int]] = {}
        for id_ in read | given:
            axis, at = self._axis(id_), int(self._rates[self._op[id_]] * first)
            height = program.ops[id_].shape[axis.dim]
            lo, hi = seen.get(self._op[id_], (at, at))
            if lo < at or hi > at + height or at + height > axis.rows:
                return None
            if id_ in read:
                cuts[id_] = axis, at, at + height
            if id_ in given:
                owns[id_] = axis, *wanted[id_], wanted[id_][0] - at
        return Band(program, cuts, owns, (own[1] - own[0], last - first))

    def _seen(self, targets: Mapping[int, Rows], read: set[int]) -> dict[int, Rows] | None:
        """Rows that these rows of values see, by op of the height's program, down to the buffers; None where a band is
        not by itself."""
        assert self._height is not None
        ops, buffers, wanted = self._height.ops, {self._op[i] for i in read}, dict(targets)
        for id_ in range(max(wanted, default=-1), -1, -1):
            if id_ not in wanted or id_ in buffers:
                continue
            op = ops[id_]
            if not self._alone(op):
                return None
            for source, lo, hi in op.demand(*wanted[id_]):
                a, b = wanted.get(source, (lo, hi))
                wanted[source] = min(a, lo), max(b, hi)
        return wanted

    def _alone(self, op: Op) -> bool:
        """Is a row of this made of rows around it alone, and of whole values that are there, along both axes?"""
        assert self._height is not None
        node = self._node.get(op.id)
        if op.kind != "call" or op.whole_reads or op.axis is None or node is None:
            return False
        along = self._program.ops[self._program.values[node]]
        born = not any(self._height.ops[i].axis for i in op.inputs)
        return not born and along.axis is not None and _wholes(self._height, op) == _wholes(self._program, along)

    def _axis(self, id_: int) -> Axis:
        assert self._height is not None
        axis = self._height.ops[self._op[id_]].axis
        assert axis is not None
        return axis

    def _plain_axis(self, id_: int) -> Axis | None:
        """Where the height of a value lies, if that is apart from its frames, and a range of those is a view."""
        assert self._height is not None
        along, op = self._program.ops[id_].axis, self._op.get(id_)
        axis = None if op is None else self._height.ops[op].axis
        if axis is None or along is None or not axis.plain or axis.dim == along.dim or along.outer != 1:
            return None
        return axis

    @cached_property
    def _height(self) -> Program | None:
        """The same graph with strips along its height."""
        return self._along_height(self.rows)

    def _along_height(self, rows: int) -> Program | None:
        if self._symbol is None:
            return None
        sizes = self._sizes | {self._symbol: rows}
        try:
            found = self._lowered(replace(self._graph, row_symbol=self._symbol), sizes)
        except UnsupportedOp:
            return None
        return found if found.ops[found.inputs[0]].axis is not None else None

    def _at(self, rows: int) -> Program | None:
        """The program along time of a clip of so many rows."""
        assert self._symbol is not None
        if rows not in self._programs:
            sizes, found = self._sizes | {self._symbol: rows}, None
            if self._graph.serves(sizes):
                found = self._lowered(self._graph, sizes)
            same = found is not None and [o.name for o in found.ops] == [o.name for o in self._program.ops]
            self._programs[rows] = found if same else None
        return self._programs[rows]

    @cached_property
    def _node(self) -> dict[int, int]:
        """The node of each op of the height's program."""
        return {} if self._height is None else {op: node for node, op in self._height.values.items()}

    @cached_property
    def _op(self) -> dict[int, int]:
        """The op of the height's program that has the value of an op of the program along time."""
        there = {} if self._height is None else self._height.values
        return {op: there[node] for node, op in self._program.values.items() if node in there}

    @cached_property
    def _rates(self) -> dict[int, Fraction] | None:
        """Rows that values gain with every row of the input, by op of the height's program."""
        for rows in (*_PROBES, self.rows):
            sizes = [self._sizes | {self._symbol or "": n} for n in (rows, 2 * rows)]
            if all(map(self._graph.serves, sizes)):
                low, high = self._along_height(rows), self._along_height(2 * rows)
                if low is None or high is None or len(low.ops) != len(high.ops):
                    continue
                pairs = zip(low.ops, high.ops, strict=True)
                return {a.id: Fraction(b.axis.rows - a.axis.rows, rows) for a, b in pairs if a.axis and b.axis}
        return None


def _wholes(program: Program, op: Op) -> int:
    """How many whole values that depend on the input an op reads."""
    return sum(program.ops[i].axis is None and not program.ops[i].constant for i in op.inputs)


def _height_of(graph: Graph) -> str | None:
    """The symbol of the first input's height."""
    shape = graph.nodes[graph.inputs[0]].meta.shape
    size = shape[-2] if len(shape) > 3 else 0
    found = re.fullmatch(r"(?:\d+\*)?([A-Za-z_]\w*)", size.expr) if isinstance(size, Size) else None
    return found[1] if found and found[1] != graph.row_symbol else None
