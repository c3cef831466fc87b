"""The sizes of a graph at one input shape, and which of them grow with the rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tvae.pipeline.engine.ir.graph import Graph, Meta, Size, evaluate
from tvae.pipeline.engine.rules.registry import NoRule

_PROBES = (64, 128, 256, 512, 1024, 32, 16)

_GROWTH = (2, 16)  # a single row of a downsampled map stays one when the rows are doubled


_SAME_REMAINDERS = (5040, 2882880)  # multiples of every number to 10; to 16, and of 64


_NEAR = 64
"""How far from a symbol's value to look for others where guards leave few."""


@dataclass(frozen=True)
class _Probe:
    """Sizes that a graph serves: a base, variants with more rows, and variants with more of another symbol."""

    base: dict[str, int]
    taller: list[dict[str, int]]
    wider: list[dict[str, int]]


def _grows(size: Size, base: dict[str, int], others: list[dict[str, int]]) -> bool:
    return any(evaluate(size, other) != evaluate(size, base) for other in others)


def _probe_sizes(graph: Graph, sizes: dict[str, int]) -> _Probe | None:
    """Find sizes at which to see what grows with the rows. The graph serves all of them.

    A size expression has a meaning only where the guards hold (one traced at a single row may divide by the rows). So
    the actual size is multiplied if the guards allow it. 2n - 1 stands for double where rows are one plus a multiple,
    as in clips whose first frame stands apart. Otherwise a size with the same remainders is tried, or a width near by.
    A symbol that the guards fix is a constant.

    Returns None if the graph serves one height, or a few that are close: nothing in it can be cut.
    """
    row = graph.row_symbol
    if row is None or row not in sizes:
        return None
    lower = [n for n in (sizes[row] >> k for k in range(1, 8)) if n > 1]  # where a guard bounds the size from above
    without_wider = None
    for height in (sizes[row], *_PROBES, *(n + 1 for n in _PROBES), *lower):
        for width in (None, *_PROBES):
            base = {s: height if s == row else n if width is None else width for s, n in sizes.items()}
            if not graph.serves(base):
                continue
            taller = _others(graph, base, row)
            wider = [others for s in base if s != row for others in _others(graph, base, s)]
            if taller and (wider or len(base) == 1):
                return _Probe(base, taller, wider)
            if taller and without_wider is None:
                without_wider = _Probe(base, taller, wider)
    return without_wider


def _others(graph: Graph, base: dict[str, int], symbol: str) -> list[dict[str, int]]:
    """Return the base with other values for a symbol, as the graph serves them."""
    size = base[symbol]
    near = range(max(size - _NEAR, 1), size + _NEAR) if symbol != graph.row_symbol else ()
    for numbers in (_grown(size), [size + n for n in _SAME_REMAINDERS], near):
        served = [base | {symbol: n} for n in numbers if n != size and graph.serves(base | {symbol: n})]
        if served:
            return served
    return []


def _grown(size: int) -> list[int]:
    return sorted({n for k in _GROWTH for n in (k * size, k * (size - 1) + 1) if n > size})


class GraphSizes:
    """A graph at the sizes that ``Graph.bind`` gave."""

    def __init__(self, graph: Graph, sizes: Mapping[str, int]) -> None:
        self.graph, self.sizes = graph, dict(sizes)
        self._probe = _probe_sizes(graph, self.sizes)
        # caches by expression: a graph has few of them, and evaluating takes longer
        self._numbers: dict[str, int] = {}
        self._follows: dict[str, bool] = {}
        self._is_wide: dict[str, bool] = {}
        self._shapes: dict[int, tuple[int, ...]] = {}

    @property
    def serves_others(self) -> bool:
        """True if the graph serves other heights, too."""
        return self._probe is not None

    def number(self, size: int | Size) -> int:
        """Evaluate a size at the actual input shape."""
        if not isinstance(size, Size):
            return size
        number = self._numbers.get(size.expr)
        if number is None:
            number = self._numbers[size.expr] = evaluate(size, self.sizes)
        return number

    def shape(self, meta: Meta) -> tuple[int, ...]:
        """Evaluate a shape at the actual input shape."""
        shape = self._shapes.get(id(meta))  # the graph keeps the meta alive, so its id stays its own
        if shape is None:
            shape = self._shapes[id(meta)] = tuple([n if type(n) is int else self.number(n) for n in meta.shape])
        return shape

    def follows(self, size: int | Size) -> bool:
        """True if this size grows with the rows. Evaluated at more rows, because symbols can cancel in an
        expression."""
        if self._probe is None or not isinstance(size, Size):
            return False
        follows = self._follows.get(size.expr)
        if follows is None:
            follows = self._follows[size.expr] = _grows(size, self._probe.base, self._probe.taller)
        return follows

    def is_wide(self, size: int | Size) -> bool:
        """True if this size grows with a tiled size other than the rows (the width)."""
        if self._probe is None or not isinstance(size, Size):
            return False
        wide = self._is_wide.get(size.expr)
        if wide is None:
            wide = self._is_wide[size.expr] = _grows(size, self._probe.base, self._probe.wider)
        return wide

    def row_dims(self, meta: Meta) -> list[int]:
        """Return the dimensions of a value that grow with the rows."""
        return [d for d, s in enumerate(meta.shape) if type(s) is not int and self.follows(s)]

    def rows_in(self, size: int | Size) -> int:
        """Return the factor of a product such as H·W/64 that belongs to the rows.

        Sizes are opaque expressions, so the factor is the greatest common divisor over a long run of widths.
        """
        if not self.follows(size):
            raise NoRule("it creates rows from a size that does not grow with them")
        row, shared = self.graph.row_symbol, 0
        for more in range(128):
            shared = math.gcd(shared, evaluate(size, {s: n if s == row else n + more for s, n in self.sizes.items()}))
        return shared
