"""A graph at concrete sizes: operations that know which rows they need and how to compute a range of rows.

An ``Op`` is what a rule makes of a graph node. It says where the rows of its value lie (``axis``), which rows of its
inputs a range of its own rows needs (``demand``), and computes that range from them (``run``). Nothing here schedules
or stores anything.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, TypedDict

import torch
from torch import Tensor

from tvae.pipeline.engine.ir.axis import Axis

__all__ = ["Demand", "More", "Op", "Parts", "Produce", "Program", "Read", "Reduction"]

Demand = tuple[int, int, int]
"""(op id, lo, hi): rows [lo, hi) of a tiled value."""


class Read(Protocol):
    """Gives an op its inputs: ``read(id, lo, hi)`` rows of a tiled value, ``read(id)`` a whole value."""

    def __call__(self, id_: int, lo: int | None = None, hi: int | None = None, /) -> Tensor: ...


@dataclass(frozen=True)
class Reduction:
    """A value that needs every row once: fold strip after strip into an accumulator, then finish.

    ``fold(acc, read, lo, hi)`` takes None as the first accumulator and is given owned rows only, each exactly once.
    ``take(acc, parts)``, where there is one, does the same with statistics that ``Op.produce`` of the source gave.
    """

    source: int
    fold: Callable[[Any, Read, int, int], Any]
    finish: Callable[[Any], Tensor]
    take: Callable[[Any, Tensor], Any] | None = None


@dataclass(frozen=True)
class Parts:
    """How an op goes without the whole of its whole reads ``over``: it sees a range of their rows at a time.

    ``part(read, lo, hi, first, last)``: of rows [lo, hi) what rows [first, last) of those contribute; ``merge`` joins
    two contributions, and ``finish`` makes the value of all of them. ``bytes(rows, seen)``: memory a part takes beside
    its operands; ``passed(rows, seen)``: bytes of that that are read or written.
    """

    over: tuple[int, ...]
    part: Callable[[Read, int, int, int, int], Any]
    merge: Callable[[Any, Any], Any]
    finish: Callable[[Any], Tensor]
    bytes: Callable[[int, int], int]
    passed: Callable[[int, int], int]


class Produce(Protocol):
    """Computes rows [lo, hi) into ``out`` (a new tensor where None), and with ``stats`` their statistics as well.

    Memory it cannot do without is taken before anything is written to ``out``: what has failed can be done again.
    """

    def __call__(
        self, read: Read, lo: int, hi: int, out: Tensor | None, stats: bool, /
    ) -> tuple[Tensor, Tensor | None]: ...


Into = Callable[[Read, int, int, Tensor], Any]
"""Computes rows [lo, hi) into memory of their shape."""


def _nothing(_rows: int) -> int:
    return 0


@dataclass(frozen=True, eq=False)
class Op:
    """One operation of a Program. It does not change once it is made.

    axis: where the rows lie, None for a whole value. whole_reads: inputs that are tiled but needed in full (attention
    keys), a barrier. reduction: set where the value itself is a barrier. cheap: recomputing it costs less than storing
    it. constant: does not depend on the inputs of the graph. produce: ``run`` for a value that is stored or whose
    statistics are wanted, in fewer passes over memory; indirect: by way of memory of its own. into: ``run`` into memory
    that is given. over: the input whose memory ``produce`` may write its result over, if nobody else needs it.
    replaces: inputs of which row r of the result needs row r alone, so that it may take the place of their buffer.
    parts: set where whole reads may come a few rows at a time. work: floating-point operations of the whole value,
    where they are what takes the time. workspace: bytes that computing so many rows of it holds beside operands and
    result. besides: bytes of the other tensors, where the value is several.
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
    produce: Produce | None = field(default=None, repr=False)
    indirect: bool = False
    into: Into | None = field(default=None, repr=False)
    over: int | None = None
    replaces: tuple[int, ...] = ()
    parts: Parts | None = field(default=None, repr=False)
    work: float = 0.0
    workspace: Callable[[int], int] = field(default=_nothing, repr=False)
    besides: int = 0

    @cached_property
    def bytes(self) -> int:
        """Size of the full value."""
        return math.prod(self.shape) * self.dtype.itemsize + self.besides

    @cached_property
    def row_bytes(self) -> float:
        """Bytes of one row (the whole value where it has no rows)."""
        return self.bytes / self.axis.rows if self.axis and self.axis.rows else self.bytes


class More(TypedDict, total=False):
    """What a rule may say of an op beside what every op has; see ``Op``."""

    kind: str
    produce: Produce
    indirect: bool
    into: Into
    over: int | None
    replaces: tuple[int, ...]
    parts: Parts | None
    work: float
    workspace: Callable[[int], int]
    besides: int


@dataclass(eq=False)
class Program:
    """Ops in topological order (``ops[i].id == i``), and which of them are inputs, parameters and outputs."""

    ops: list[Op]
    inputs: list[int]
    outputs: list[int]
    params: dict[int, str]
    rows: int
    """Rows of the first input: what strips divide."""
    values: Mapping[int, int] = field(default_factory=dict)
    """The op whose value a node of the graph has, by the node's number."""
    whole: tuple[str, ...] = ()
    """What made some of it run on whole values: operations without a rule, by name and module."""
    handed_over: frozenset[int] = frozenset()
    """Inputs that nobody wants back: the caches of a step, which go as soon as nothing reads them any more."""
    memory: dict[str, Any] = field(default_factory=dict, init=False, repr=False)
    """What planning has found out about it."""

    @property
    def chunkable(self) -> set[int]:
        """Whole reads of ops that can do with a few of their rows at a time."""
        return {i for op in self.ops if op.parts for i in op.parts.over}
