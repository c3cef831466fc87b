"""Which sizes of the inputs a capture makes symbols, and which of them are multiples of one another."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

__all__ = ["Choice", "choices"]

Place = tuple[int, int]
"""An input and a dimension of it."""


@dataclass(frozen=True)
class Choice:
    """shapes: ``dynamic_shapes`` of the exporter, of each input. multiples: (one size, factor, another): the first is
    so many times the other."""

    shapes: Sequence[dict[int, Any] | None]
    multiples: tuple[tuple[Place, int, Place], ...] = ()

    def state(self, inputs: Sequence[Tensor]) -> None:
        """Within the export, before the model runs: its multiples are known from the first operation on. By itself the
        exporter compares sizes only where an operation asks; a model that looks something up by a shape's text does
        not ask, and equal sizes must read alike."""
        for (n, dim), factor, (root, of) in self.multiples:
            bool(inputs[n].shape[dim] == factor * inputs[root].shape[of])


def choices(inputs: Sequence[Tensor], rows: int) -> Iterator[Choice]:
    """The most general one first. A choice fails if the model needs one of its symbols as a constant (a reshape by a
    literal); the graph of the last choice serves one shape only."""
    from torch.export import Dim

    def every(kind: Any, of_rows: Any) -> Choice:
        found: list[dict[int, Any] | None] = []
        for n, t in enumerate(inputs):
            kinds = {t.ndim - 2: kind, t.ndim - 1: kind} if t.ndim >= 4 else {}
            if not n and t.ndim >= 4:
                kinds |= {rows % t.ndim: of_rows}
            found.append({d: k for d, k in kinds.items() if k is Dim.AUTO or t.shape[d] != 1} or None)
        return Choice(found)

    several = len(inputs) > 1 and all(t.ndim >= 4 for t in inputs)
    units = [math.gcd(*(t.shape[dim] for t in inputs)) for dim in (-2, -1)] if several else []
    if several and min(units) > 1:
        yield Choice(_as_multiples(inputs, units, (Dim("rows"), Dim("columns"))), _multiples(inputs, units))
    yield every(Dim.DYNAMIC, Dim.DYNAMIC)
    if rows != -2:
        yield every(Dim.AUTO, Dim.DYNAMIC)
    yield every(Dim.AUTO, Dim.AUTO)
    if several and 1 in inputs[0].shape[-2:]:  # unnamed: bounds of a single size are no conditions on two
        shapes = [{t.ndim + d: Dim.AUTO for d, unit in zip((-2, -1), units, strict=True) if unit > 1} for t in inputs]
        yield Choice([one or None for one in shapes], _multiples(inputs, units))


def _as_multiples(
    inputs: Sequence[Tensor], units: Sequence[int], symbols: Sequence[Any]
) -> list[dict[int, Any] | None]:
    """Heights and widths of several inputs as multiples of one height and one width: the caches of a streaming step, a
    picture beside its latents."""
    found: list[dict[int, Any] | None] = []
    for t in inputs:
        factors = [t.shape[d] // unit for d, unit in zip((-2, -1), units, strict=True)]
        sizes = [one if factor == 1 else factor * one for one, factor in zip(symbols, factors, strict=True)]
        found.append({t.ndim - 2: sizes[0], t.ndim - 1: sizes[1]})
    return found


def _multiples(inputs: Sequence[Tensor], units: Sequence[int]) -> tuple[tuple[Place, int, Place], ...]:
    """Of the sizes of an input that are the unit, where one has it."""
    found: list[tuple[Place, int, Place]] = []
    for dim, unit in zip((-2, -1), units, strict=True):
        roots = [(n, t.ndim + dim) for n, t in enumerate(inputs) if t.shape[dim] == unit]
        for n, t in enumerate(inputs):
            place = n, t.ndim + dim
            if roots and place != roots[0]:
                found.append((place, t.shape[dim] // unit, roots[0]))
    return tuple(found)
