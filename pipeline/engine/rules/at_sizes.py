"""A graph's sizes at one input shape, and which of them grow with the rows."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tvae.pipeline.engine.ir.graph import Graph, Meta
from tvae.pipeline.engine.ir.sizes import Size, evaluate
from tvae.pipeline.engine.rules.probe import grows, probe_sizes
from tvae.pipeline.engine.rules.registry import NoRule

__all__ = ["AtSizes"]


class AtSizes:
    """A graph at the sizes that ``Graph.bind`` gave."""

    def __init__(self, graph: Graph, sizes: Mapping[str, int]) -> None:
        self.graph, self.sizes = graph, dict(sizes)
        self._probe = probe_sizes(graph, self.sizes)
        self._numbers: dict[str, int] = {}  # by expression: a graph has few of them, and evaluating takes longer
        self._follows: dict[str, bool] = {}
        self._is_wide: dict[str, bool] = {}
        self._shapes: dict[int, tuple[int, ...]] = {}

    @property
    def serves_others(self) -> bool:
        """Does the graph serve other heights, too?"""
        return self._probe is not None

    def number(self, size: int | Size) -> int:
        """A size at the actual input shape."""
        if not isinstance(size, Size):
            return size
        number = self._numbers.get(size.expr)
        if number is None:
            number = self._numbers[size.expr] = evaluate(size, self.sizes)
        return number

    def shape(self, meta: Meta) -> tuple[int, ...]:
        """A shape at the actual input shape."""
        found = self._shapes.get(id(meta))  # rules and ``emit`` ask for the same; the graph keeps what it belongs to
        if found is None:
            found = self._shapes[id(meta)] = tuple([n if type(n) is int else self.number(n) for n in meta.shape])
        return found

    def follows(self, size: int | Size) -> bool:
        """Does this size grow with the rows? Decided by evaluating it at more rows: in an expression, symbols can
        cancel."""
        if self._probe is None or not isinstance(size, Size):
            return False
        found = self._follows.get(size.expr)
        if found is None:
            found = self._follows[size.expr] = grows(size, self._probe.base, self._probe.taller)
        return found

    def is_wide(self, size: int | Size) -> bool:
        """Does this size grow with a tiled size other than the rows (the width)?"""
        if self._probe is None or not isinstance(size, Size):
            return False
        found = self._is_wide.get(size.expr)
        if found is None:
            found = self._is_wide[size.expr] = grows(size, self._probe.base, self._probe.wider)
        return found

    def row_dims(self, meta: Meta) -> list[int]:
        """Dimensions of a value that grow with the rows."""
        return [d for d, s in enumerate(meta.shape) if type(s) is not int and self.follows(s)]

    def rows_in(self, size: int | Size) -> int:
        """The factor of a product such as H·W/64 that belongs to the rows.

        Found numerically, as sizes are opaque expressions: what all widths of a long run have in common is the rows.
        """
        if not self.follows(size):
            raise NoRule("it creates rows from a size that does not grow with them")
        row, shared = self.graph.row_symbol, 0
        for more in range(128):
            shared = math.gcd(shared, evaluate(size, {s: n if s == row else n + more for s, n in self.sizes.items()}))
        return shared
