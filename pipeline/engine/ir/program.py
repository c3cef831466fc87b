"""A graph at concrete sizes: operations that know which rows they need and how to compute a range of rows.

An ``Op`` is what a rule makes of a graph node. It says where the rows of its value lie (``axis``), which rows of its
inputs a range of its own rows needs (``demand``), and computes that range from them (``run``). Nothing here schedules
or stores anything.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, TypedDict, TypeVar, Unpack, dataclass_transform

import torch
from torch import Tensor

from tvae.pipeline.engine.ir.axis import Axis
from tvae.pipeline.engine.ir.ranks import Ranks

__all__ = ["Chunked", "Demand", "More", "Op", "Produce", "Program", "Read", "Reduction", "added", "largest_of"]

_T = TypeVar("_T")

Demand = tuple[int, int, int]
"""(op id, lo, hi): rows [lo, hi) of a tiled value."""


class Read(Protocol):
    """Gives an op its inputs: ``read(id, lo, hi)`` rows of a tiled value, ``read(id)`` a whole value."""

    def __call__(self, id_: int, lo: int | None = None, hi: int | None = None, /) -> Tensor: ...


def _itself(acc: Any) -> Tensor:
    found: Tensor = acc
    return found


def added(acc: Any, part: Tensor) -> Any:
    """``Reduction.join`` of sums."""
    return part if acc is None else acc + part


@dataclass(frozen=True)
class Reduction:
    """A value that needs every row once: fold strip after strip into an accumulator, then finish.

    ``fold(acc, read, lo, hi)`` takes None as the first accumulator and is given owned rows only, each exactly once.
    ``take(acc, statistics)``, where there is one, does the same with those that ``Op.produce`` of the source gave.
    Ranks that share a program each fold their own rows: ``part(acc)`` is what one of them found, of the op's shape, and
    ``join(acc, part)`` adds it, in float64, to what others did; None is the first accumulator. A value without ``join``
    cannot be shared.
    """

    source: int
    fold: Callable[[Any, Read, int, int], Any]
    finish: Callable[[Any], Tensor]
    take: Callable[[Any, Tensor], Any] | None = None
    part: Callable[[Any], Tensor] = _itself
    join: Callable[[Any, Tensor], Any] | None = None


@dataclass(frozen=True)
class Chunked:
    """How an op computes when its whole reads ``sources`` are not all on the device: from chunks of their rows.

    ``partial(read, lo, hi, first, last)``: what rows [first, last) of the sources contribute to rows [lo, hi);
    ``merge`` joins two contributions; ``finish`` makes the value when all of them are merged. For so many rows of the
    op and of a chunk, ``workspace(rows, seen)`` is the bytes taken beside the operands, and ``traffic(rows, seen)`` the
    bytes read or written there.
    """

    sources: tuple[int, ...]
    partial: Callable[[Read, int, int, int, int], Any]
    merge: Callable[[Any, Any], Any]
    finish: Callable[[Any], Tensor]
    workspace: Callable[[int, int], int]
    traffic: Callable[[int, int], int]


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


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(field,))
def _unchanging(cls: type[_T]) -> type[_T]:
    """A dataclass whose fields a type checker lets nobody set. One that Python guards takes five times as long to make,
    and a picture of a new size makes a hundred."""
    return dataclass(eq=False)(cls)


@_unchanging
class Op:
    """One operation of a Program. It does not change once it is made."""

    id: int
    name: str
    module: str
    """Path of the model's submodule that calls it."""
    inputs: tuple[int, ...]
    axis: Axis | None
    """Where the rows lie; None for a whole value."""
    shape: tuple[int, ...]
    dtype: torch.dtype
    demand: Callable[[int, int], Sequence[Demand]] = field(repr=False)
    """Which rows of its inputs rows [lo, hi) of it need."""
    run: Callable[[Read, int, int], Tensor] = field(repr=False)
    """Computes rows [lo, hi)."""
    whole_reads: tuple[int, ...] = ()
    """Inputs that have rows and are needed in full, such as the keys of attention: a barrier."""
    reduction: Reduction | None = None
    """Set where the value itself needs every row: a barrier."""
    cheap: bool = False
    """Recomputing it costs less than storing it."""
    constant: bool = False
    """It does not depend on the inputs of the graph."""
    kind: str = "call"
    produce: Produce | None = field(default=None, repr=False)
    """``run`` in fewer passes over memory, for a value that is stored or whose statistics are wanted."""
    indirect: bool = False
    """``produce`` needs memory of its own."""
    into: Into | None = field(default=None, repr=False)
    """``run`` into memory that is given."""
    over: int | None = None
    """The input whose memory ``produce`` may write its result over, if nothing else reads it."""
    replaces: tuple[int, ...] = ()
    """Inputs of which row r of the result needs row r alone, so that it may take the place of their buffer."""
    chunked: Chunked | None = field(default=None, repr=False)
    """Set where whole reads may come in chunks of their rows."""
    work: float = 0.0
    """Floating-point operations of the whole value, where they are what takes the time."""
    workspace: Callable[[int], int] = field(default=_nothing, repr=False)
    """Bytes that computing so many rows takes beside operands and result."""
    packs: int | None = None
    """The input that it copies once more, where it gets rows of it that do not lie in one piece."""
    other_bytes: int = 0
    """Size of its other results, where it gives several tensors."""

    def saying(self, **more: Unpack[More]) -> Op:
        """The same op, with more to say. Its fields are copied together: naming each of them takes longer."""
        fields = self.__dict__ | more
        for found in ("bytes", "row_bytes", "structure"):  # what was worked out of the others
            fields.pop(found, None)
        made = object.__new__(Op)
        made.__dict__.update(fields)
        return made

    @cached_property
    def bytes(self) -> int:
        """Size of the full value."""
        return math.prod(self.shape) * self.dtype.itemsize + self.other_bytes

    @cached_property
    def row_bytes(self) -> float:
        """Bytes of one row (the whole value where it has no rows)."""
        return self.bytes / self.axis.rows if self.axis and self.axis.rows else self.bytes


def largest_of(ops: Iterable[Op]) -> int:
    """Elements of the largest of those values that have rows; 1 where none has."""
    return max([math.prod(op.shape) for op in ops if op.axis is not None], default=1)


class More(TypedDict, total=False):
    """What a rule may say of an op beside what every op has; see ``Op``."""

    kind: str
    produce: Produce
    indirect: bool
    into: Into
    over: int | None
    replaces: tuple[int, ...]
    chunked: Chunked | None
    work: float
    workspace: Callable[[int], int]
    packs: int | None
    other_bytes: int


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
    """Inputs that the caller does not want back, such as the caches of a step: each is freed after its last use."""
    ranks: Ranks | None = None
    """Of a program that several devices run together: the rows that each of them owns. None where one runs it."""
    found: dict[type, Any] = field(default_factory=dict, init=False, repr=False)
    """What planning has found out about it, by the type of what was found."""

    @cached_property
    def given(self) -> frozenset[int]:
        """Inputs, parameters and noise: what no op computes."""
        return frozenset(op.id for op in self.ops if op.kind in ("input", "param", "noise"))

    @cached_property
    def largest(self) -> int:
        """Elements of the largest value that has rows."""
        return largest_of(self.ops)

    @property
    def own(self) -> tuple[int, int]:
        """The rows of the first input that this device's strips divide: all, or its own."""
        return (0, self.rows) if self.ranks is None else self.ranks.own

    @property
    def own_rows(self) -> int:
        """How many they are."""
        return self.own[1] - self.own[0]

    @property
    def chunkable(self) -> set[int]:
        """Whole reads of ops that can also take them in chunks."""
        return {i for op in self.ops if op.chunked for i in op.chunked.sources}
