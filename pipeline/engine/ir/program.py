"""A graph at concrete sizes: operations that know which rows they need and how to compute a range of rows.

An ``Op`` is what a rule makes of a graph node. It says where the rows of its value lie (``axis``), which rows of its
inputs a range of its own rows needs (``demand``), and computes that range from them (``run``). Nothing here schedules
or stores anything.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, TypedDict, TypeVar, Unpack, dataclass_transform

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from tvae.pipeline.engine.ir.axis import Axis

_T = TypeVar("_T")

Demand = tuple[int, int, int]
"""(op id, lo, hi): rows [lo, hi) of a tiled value."""


class Read(Protocol):
    """Gives an op its inputs: ``read(id, lo, hi)`` rows of a tiled value, ``read(id)`` a whole value."""

    def __call__(self, id_: int, lo: int | None = None, hi: int | None = None, /) -> Tensor: ...


def _itself(acc: Any) -> Tensor:
    value: Tensor = acc
    return value


def added(acc: Any, part: Tensor) -> Any:
    """Add a part to a sum: the ``Reduction.join`` of sums."""
    return part if acc is None else acc + part


@dataclass(frozen=True)
class Reduction:
    """A value that needs every row once: fold strip after strip into an accumulator, then finish.

    ``fold(acc, read, lo, hi)`` takes None as the first accumulator and owned rows only, each exactly once. ``take(acc,
    statistics)``, if set, does the same with statistics that ``Op.produce`` of the source gave. Ranks that share a
    program each fold their own rows: ``part(acc)`` is the result of one of them, of the op's shape, and ``join(acc,
    part)`` adds it, in float64, to those of others; None is the first accumulator. A value without ``join`` cannot be
    shared.
    """

    source: int
    fold: Callable[[Any, Read, int, int], Any]
    finish: Callable[[Any], Tensor]
    take: Callable[[Any, Tensor], Any] | None = None
    part: Callable[[Any], Tensor] = _itself
    join: Callable[[Any, Tensor], Any] | None = None


@dataclass(frozen=True)
class Chunked:
    """The computation of an op from chunks of its whole reads ``sources``, when these are not all on the device.

    ``partial(read, lo, hi, first, last)`` gives what rows [first, last) of the sources contribute to rows [lo, hi);
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
    """Computes rows [lo, hi) into ``out`` (a new tensor if None), and with ``stats`` their statistics as well.

    It allocates all memory before it writes to ``out``, so that a failed call can be repeated.
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
    """Make a dataclass whose fields a type checker lets nobody set. A frozen one takes five times as long to make, and
    a picture of a new size makes a hundred."""
    return dataclass(eq=False)(cls)


@_unchanging
class Op:
    """An operation of a Program. It does not change after it is made."""

    id: int
    name: str
    module: str
    """Path of the model's submodule that calls it."""
    inputs: tuple[int, ...]
    axis: Axis | None
    """The rows' place; None for a whole value."""
    shape: tuple[int, ...]
    dtype: torch.dtype
    demand: Callable[[int, int], Sequence[Demand]] = field(repr=False)
    """Rows of its inputs that rows [lo, hi) of it need."""
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
    """``run`` into given memory."""
    over: int | None = None
    """The input whose memory ``produce`` may write its result over, if nothing else reads it."""
    replaces: tuple[int, ...] = ()
    """Inputs whose row r alone row r of the result needs, so that it may take the place of their buffer."""
    chunked: Chunked | None = field(default=None, repr=False)
    """Set where whole reads may come in chunks of their rows."""
    work: float = 0.0
    """Floating-point operations of the whole value, where they take the time."""
    workspace: Callable[[int], int] = field(default=_nothing, repr=False)
    """Bytes that computing so many rows takes beside operands and result."""
    packs: int | None = None
    """The input that it copies if its rows do not lie in one piece."""
    other_bytes: int = 0
    """Size of its other results, if it gives several tensors."""

    def with_fields(self, **more: Unpack[More]) -> Op:
        """Return the op with other fields. They are copied together, as naming each of them takes longer."""
        fields = self.__dict__ | more
        for cached in ("bytes", "row_bytes", "structure"):  # computed from the others
            fields.pop(cached, None)
        op = object.__new__(Op)
        op.__dict__.update(fields)
        return op

    @cached_property
    def bytes(self) -> int:
        """Size of the full value."""
        return math.prod(self.shape) * self.dtype.itemsize + self.other_bytes

    @cached_property
    def row_bytes(self) -> float:
        """Bytes of one row (the whole value where it has no rows)."""
        return self.bytes / self.axis.rows if self.axis and self.axis.rows else self.bytes


def largest_of(ops: Iterable[Op]) -> int:
    """Return the number of elements of the largest value that has rows, or 1."""
    return max([math.prod(op.shape) for op in ops if op.axis is not None], default=1)


class More(TypedDict, total=False):
    """Optional fields of an ``Op`` that a rule may give."""

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
    """Operations without a rule, by name and module, for which some of it runs on whole values."""
    handed_over: frozenset[int] = frozenset()
    """Inputs that the caller does not want back, such as the caches of a step: each is freed after its last use."""
    ranks: Ranks | None = None
    """The rows that each of several devices owns; None if one device runs the program."""
    found: dict[type, Any] = field(default_factory=dict, init=False, repr=False)
    """A cache of planning's results, by their type."""

    @cached_property
    def given(self) -> frozenset[int]:
        """Inputs, parameters and noise: values that no op computes."""
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
        """The number of these rows."""
        return self.own[1] - self.own[0]

    @property
    def chunkable(self) -> set[int]:
        """Whole reads of ops that can also take them in chunks."""
        return {i for op in self.ops if op.chunked for i in op.chunked.sources}


# -- ranks -------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Ranks:
    """The bands of the input's rows that the ranks own, from top to bottom, and this process's rank.

    Bands are ranges [lo, hi) that follow one another; none is empty.
    """

    bands: tuple[tuple[int, int], ...]
    rank: int

    @property
    def own(self) -> tuple[int, int]:
        """This rank's rows of the input."""
        return self.bands[self.rank]

    @property
    def widest(self) -> int:
        """The rank that has most to hold: with the most rows, and if possible between two others."""
        between = range(1, len(self.bands) - 1)
        rows = [hi - lo for lo, hi in self.bands]
        return max(range(len(rows)), key=lambda rank: (rows[rank], rank in between, -rank))


def even_bands(rows: int, unit: int, ranks: int, shares: Sequence[float] = ()) -> tuple[tuple[int, int], ...]:
    """Return bands of ``rows`` rows for at most ``ranks`` ranks, each but the last a multiple of ``unit`` rows. There
    are fewer bands than ranks if there are fewer units: every band has one.

    Args:
        shares: of the rows, by rank, in proportion; even by default.
    """
    units = max(1, rows // unit)
    count = min(ranks, units)
    wanted = [*(shares[:count] if shares else [1.0] * count)]
    ends, passed = [0], 0.0
    for n, share in enumerate(wanted, 1):
        passed += share
        end = round(units * passed / sum(wanted))
        ends.append(min(max(end, ends[-1] + 1), units - (count - n)))
    edges = [unit * end for end in ends[:-1]] + [rows]
    return tuple(itertools.pairwise(edges))


# -- constants: values of weights alone, such as summed kernels --------------------------------------------------------
@torch.no_grad()
def compute_constants(
    program: Program, weights: Mapping[str, Tensor], known: MutableMapping[Op, Tensor] | None = None
) -> dict[int, Tensor]:
    """Compute the values of ``constant_ops``, by op id. They are kept, so a caller's own dispatch mode is disabled.

    Args:
        known: values of ops that other programs with these weights share; new ones are added.
    """
    values: dict[int, Tensor] = {i: weights[name] for i, name in program.params.items()}
    known = {} if known is None else known

    def read(id_: int, _lo: int | None = None, _hi: int | None = None) -> Tensor:
        return values[id_]

    ops = constant_ops(program)
    with _disable_current_modes():
        for op in ops:
            value = known.get(op)
            if value is None:
                value = known[op] = op.run(read, 0, 0)
            values[op.id] = value
    return {op.id: values[op.id] for op in ops}


def constant_bytes(program: Program) -> int:
    """Count the bytes of the values of ``compute_constants``."""
    return sum(op.bytes for op in constant_ops(program))


def constant_ops(program: Program) -> list[Op]:
    """Return the ops that read weights, and nothing else but constants."""
    known, ops = set(program.params), list[Op]()
    for op in program.ops:
        whole = op.axis is None and op.reduction is None and op.kind == "call" and bool(op.inputs)
        if whole and op.constant and known.issuperset(op.inputs):
            known.add(op.id)
            ops.append(op)
    return ops
