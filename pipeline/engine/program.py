"""A graph at concrete sizes: operations that know which rows they need and how to compute a range of rows.

An ``Op`` is what a rule makes of a graph node. It says where the rows of its value lie (``axis``), which rows of its
inputs a range of its own rows needs (``demand``), and computes that range from them (``run``). Nothing here schedules
or stores anything.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from tvae.pipeline.engine.axis import Axis

__all__ = ["Demand", "Op", "Program", "Read", "Reduction"]

Demand = tuple[int, int, int]
"""(op id, lo, hi): rows [lo, hi) of a tiled value."""


class Read(Protocol):
    """Gives an op its inputs: ``read(id, lo, hi)`` rows of a tiled value, ``read(id)`` a whole value."""

    def __call__(self, id_: int, lo: int | None = None, hi: int | None = None, /) -> Tensor: ...


@dataclass(frozen=True)
class Reduction:
    """A value that needs every row once: fold strip after strip into an accumulator, then finish.

    ``fold(acc, read, lo, hi)`` takes None as the first accumulator and is given owned rows only, each exactly once.
    """

    source: int
    fold: Callable[[Any, Read, int, int], Any]
    finish: Callable[[Any], Tensor]


@dataclass
class Op:
    """One operation of a Program.

    axis: where the rows lie, None for a whole value. whole_reads: inputs that are tiled but needed in full (attention
    keys), a barrier. reduction: set where the value itself is a barrier. cheap: recomputing it costs less than storing
    it. constant: does not depend on the inputs of the graph.
    """

    id: int
    name: str
    module: str
    inputs: tuple[int, ...]
    axis: Axis | None
    shape: tuple[int, ...]
    dtype: torch.dtype
    demand: Callable[[int, int], Sequence[Demand]] = field(repr=False)
    run: Callable[[Read, int, int], Tensor] = field(repr=False)
    whole_reads: tuple[int, ...] = ()
    reduction: Reduction | None = None
    cheap: bool = False
    constant: bool = False
    kind: str = "call"

    @property
    def bytes(self) -> int:
        """Size of the full value."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def row_bytes(self) -> float:
        """Bytes of one row (the whole value where it has no rows)."""
        return self.bytes / self.axis.rows if self.axis and self.axis.rows else self.bytes


@dataclass
class Program:
    """Ops in topological order (``ops[i].id == i``), and which of them are inputs, parameters and outputs."""

    ops: list[Op]
    inputs: list[int]
    outputs: list[int]
    params: dict[int, str]
    rows: int
    """Rows of the first input: what strips divide."""
