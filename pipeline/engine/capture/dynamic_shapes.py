"""Choose which sizes of the inputs become symbols in a capture, and which of them are multiples of one another."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

__all__ = ["DynamicShapes", "dynamic_shapes", "size_units"]

Place = tuple[int, int]
"""An input and a dimension of it."""


@dataclass(frozen=True)
class DynamicShapes:
    """The exporter's ``dynamic_shapes`` of each input, and sizes that are multiples: (size, factor, of this size)."""

    shapes: Sequence[dict[int, Any] | None]
    multiples: tuple[tuple[Place, int, Place], ...] = ()

    def declare(self, inputs: Sequence[Tensor]) -> None:
        """Compare the multiples before the model runs, so that they are known from its first operation on."""
        for (n, dim), factor, (root, root_dim) in self.multiples:
            bool(inputs[n].shape[dim] == factor * inputs[root].shape[root_dim])


def dynamic_shapes(inputs: Sequence[Tensor], rows: int) -> Iterator[DynamicShapes]:
    """Yield choices, the most general first.

    An export fails if the model needs one of the symbols as a constant (a reshape by a literal). The last choice lets
    the exporter make any of them constant.
    """
    from torch.export import Dim

    def all_symbolic(kind: Any, rows_kind: Any) -> DynamicShapes:
        shapes: list[dict[int, Any] | None] = []
        for n, t in enumerate(inputs):
            kinds = {t.ndim - 2: kind, t.ndim - 1: kind} if t.ndim >= 4 else {}
            if not n and t.ndim >= 4:
                kinds |= {rows % t.ndim: rows_kind}
            shapes.append({d: k for d, k in kinds.items() if k is Dim.AUTO or t.shape[d] != 1} or None)
        return DynamicShapes(shapes)

    several = len(inputs) > 1 and all(t.ndim >= 4 for t in inputs)
    units = size_units(inputs) if several else []
    if several and min(units) > 1:
        yield DynamicShapes(_as_multiples(inputs, units, (Dim("rows"), Dim("columns"))), _multiples(inputs, units))
    yield all_symbolic(Dim.DYNAMIC, Dim.DYNAMIC)
    if rows != -2:
        yield all_symbolic(Dim.AUTO, Dim.DYNAMIC)
    yield all_symbolic(Dim.AUTO, Dim.AUTO)
    if several and 1 in inputs[0].shape[-2:]:  # unnamed: the bounds of a single size say nothing of two
        shapes = [{t.ndim + d: Dim.AUTO for d, unit in zip((-2, -1), units, strict=True) if unit > 1} for t in inputs]
        yield DynamicShapes([shape or None for shape in shapes], _multiples(inputs, units))


def size_units(inputs: Sequence[Tensor]) -> list[int]:
    """Return the greatest common divisors of all heights and of all widths."""
    return [math.gcd(*(t.shape[dim] for t in inputs if t.ndim >= 4)) for dim in (-2, -1)]


def _as_multiples(
    inputs: Sequence[Tensor], units: Sequence[int], symbols: Sequence[Any]
) -> list[dict[int, Any] | None]:
    """Name the sizes of several inputs (the caches of a streaming step) as multiples of one height and width."""
    shapes: list[dict[int, Any] | None] = []
    for t in inputs:
        factors = [t.shape[d] // unit for d, unit in zip((-2, -1), units, strict=True)]
        sizes = [symbol if factor == 1 else factor * symbol for symbol, factor in zip(symbols, factors, strict=True)]
        shapes.append({t.ndim - 2: sizes[0], t.ndim - 1: sizes[1]})
    return shapes


def _multiples(inputs: Sequence[Tensor], units: Sequence[int]) -> tuple[tuple[Place, int, Place], ...]:
    """Relate all sizes to those of an input that has the unit, where there is one."""
    multiples: list[tuple[Place, int, Place]] = []
    for dim, unit in zip((-2, -1), units, strict=True):
        roots = [(n, t.ndim + dim) for n, t in enumerate(inputs) if t.shape[dim] == unit]
        for n, t in enumerate(inputs):
            place = n, t.ndim + dim
            if roots and place != roots[0]:
                multiples.append((place, t.shape[dim] // unit, roots[0]))
    return tuple(multiples)
