"""Which sizes of a graph grow with the rows: found by trying others that the graph serves."""

from __future__ import annotations

from dataclasses import dataclass

from tvae.pipeline.engine.ir.graph import Graph, Size, evaluate

__all__ = ["Probe", "grows", "probe_sizes"]

_PROBES = (64, 128, 256, 512, 1024, 32, 16)
_GROWTH = (2, 16)  # a single row of a downsampled map stays one when the rows are doubled
_SAME_REMAINDERS = (5040, 2882880)  # multiples of every number to 10; to 16, and of 64
_NEAR = 64


@dataclass(frozen=True)
class Probe:
    """Sizes a graph serves: some, others with more rows, and others with more of some other size."""

    base: dict[str, int]
    taller: list[dict[str, int]]
    wider: list[dict[str, int]]


def grows(size: Size, base: dict[str, int], others: list[dict[str, int]]) -> bool:
    return any(evaluate(size, other) != evaluate(size, base) for other in others)


def probe_sizes(graph: Graph, sizes: dict[str, int]) -> Probe | None:
    """Sizes at which to see what follows the rows, all of them sizes that the graph serves.

    A size expression means something only where the guards hold (one that was traced at a single row may divide by the
    rows), so the actual size is multiplied if the guards allow it (2n - 1 stands for double where rows are one and a
    multiple: frames of a clip whose first stands apart), else some other: one with the same remainders, or a
    width near by where guards leave a few. One to which they leave no choice is a constant. None: the graph serves one
    height, or a few that are close, and nothing in it can be cut.
    """
    row = graph.row_symbol
    if row is None or row not in sizes:
        return None
    lower = [n for n in (sizes[row] >> k for k in range(1, 8)) if n > 1]  # where a guard bounds the size from above
    narrow = None
    for height in (sizes[row], *_PROBES, *(n + 1 for n in _PROBES), *lower):
        for width in (None, *_PROBES):
            base = {s: height if s == row else n if width is None else width for s, n in sizes.items()}
            if not graph.serves(base):
                continue
            taller = _others(graph, base, row)
            wider = [others for s in base if s != row for others in _others(graph, base, s)]
            if taller and (wider or len(base) == 1):
                return Probe(base, taller, wider)
            if taller and narrow is None:
                narrow = Probe(base, taller, wider)
    return narrow


def _others(graph: Graph, base: dict[str, int], symbol: str) -> list[dict[str, int]]:
    """With another size than that of the base for a symbol, as the graph serves them."""
    size = base[symbol]
    near = range(max(size - _NEAR, 1), size + _NEAR) if symbol != graph.row_symbol else ()
    for numbers in (_grown(size), [size + n for n in _SAME_REMAINDERS], near):
        served = [base | {symbol: n} for n in numbers if n != size and graph.serves(base | {symbol: n})]
        if served:
            return served
    return []


def _grown(size: int) -> list[int]:
    return sorted({n for k in _GROWTH for n in (k * size, k * (size - 1) + 1) if n > size})
