"""Schedule: Program + strip height -> Plan, a list of segments between barriers.

Reductions and whole reads are barriers: what depends on them can start only when every row has passed. They cut the
program into segments; a value that a later segment reads is kept in a boundary buffer, unless recomputing costs less.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from tvae.pipeline.engine.ir.axis import Axis
from tvae.pipeline.engine.ir.program import Op, Program
from tvae.pipeline.engine.plan.barriers import levels, read_from_buffer, without_work
from tvae.pipeline.engine.plan.bounds import Rows
from tvae.pipeline.engine.plan.reuse import deferred_writes, reused
from tvae.pipeline.engine.plan.shard import rooms
from tvae.pipeline.engine.plan.strips import strips_of
from tvae.pipeline.errors import PlanError

__all__ = [
    "PREFETCH",
    "STAGES",
    "Band",
    "Place",
    "Schedule",
    "Segment",
    "by_rows",
    "cut_up",
    "movable",
    "placed",
    "schedule",
]

STAGES, PREFETCH = 3, 1
"""Strips that have memory at the same time, and how many of them are prefetched while one is computed."""
LEAVING = 2
"""Values of a strip that are on their way out at the same time: a step of a clip makes thirty caches in one strip."""

Place = Literal["host", "disk", "caller"]
"""Where a buffer lives that is not on the device; *caller*: an input or output that comes or goes by rows."""


@dataclass(frozen=True, eq=False)
class Band:
    """Rows of the height of every value of a strip of frames, and what is computed for them (see ``height_bands``).

    program: the same operations, of a clip as high as what the band sees. cuts: of the buffers it reads, by op id, the
    axis of the height and the rows to cut out. owns: of what it gives (sinks, and what reductions take), the axis, the
    rows [lo, hi) of the value, and which row of the band's own is the first of them. units: rows of the input it owns,
    and rows it sees.
    """

    program: Program = field(repr=False)
    cuts: Mapping[int, tuple[Axis, int, int]]
    owns: Mapping[int, tuple[Axis, int, int, int]]
    units: tuple[int, int]


@dataclass(frozen=True)
class Segment:
    """Operations between two cuts.

    whole: whole values computed once, before the strips. body: what every strip computes, in topological order. sinks:
    those of the body that are stored or reduced. reads: buffers of earlier segments that the body reads. drops:
    values whose last use is in this segment. strips: ranges of input rows, in the order they run. reuse: sinks that are
    written over the buffer of a value that is not read after them. deferred: those of them whose rows wait until no
    strip needs the old ones any more: later strips read rows beyond their own. slides: its strips keep rows for the
    next one rather than compute them twice. bands: each strip is computed band by band, from top to bottom; () for all
    of its height at once. buffered: its values are written into buffers, even if there is but one strip: other
    segments have several, and may write over them.
    """

    whole: tuple[int, ...]
    body: tuple[int, ...]
    sinks: tuple[int, ...]
    reads: frozenset[int]
    drops: tuple[int, ...]
    strips: tuple[Rows, ...]
    reuse: Mapping[int, int] = field(default_factory=dict)
    deferred: frozenset[int] = frozenset()
    slides: bool = False
    bands: tuple[Band, ...] = ()
    buffered: bool = False

    @property
    def single(self) -> bool:
        """Is there but one strip, whose values become the buffers?"""
        return len(self.strips) == 1 and not self.bands and not self.buffered

    def goes_early(self, program: Program) -> frozenset[int]:
        """Inputs handed over that are freed as soon as a single strip has read them, before the segment is done."""
        return program.handed_over & self.reads & {*self.drops} if self.single else frozenset()


@dataclass(frozen=True)
class Schedule:
    """Segments in order, and the ops whose whole value is kept in a buffer.

    strip_rows: the height that was chosen; segments may have lower strips where memory is short, higher ones where
    values are small. places: where those buffers live that are not on the device. defer: with deferred writes. rooms:
    of a program that ranks share, the rows of each buffer that this one has memory for. alike: what runs worked out
    that programs of equal structure have in common.
    """

    program: Program
    segments: tuple[Segment, ...]
    stored: frozenset[int]
    strip_rows: int
    places: Mapping[int, Place] = field(default_factory=dict)
    defer: bool = False
    rooms: Mapping[int, Rows] = field(default_factory=dict)
    alike: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)
    shares: dict[Any, Any] = field(default_factory=dict, init=False, compare=False, repr=False)
    facts: dict[Any, Any] = field(default_factory=dict, init=False, compare=False, repr=False)
    """What runs worked out for the next one: about segments of one strip, as many strips fill memory; about all."""

    def first(self, id_: int) -> int:
        """The first row that a buffer has."""
        return self.rooms[id_][0] if id_ in self.rooms else 0

    def rows(self, id_: int) -> int | None:
        """How many rows it has, None for all."""
        return self.rooms[id_][1] - self.rooms[id_][0] if id_ in self.rooms else None

    def bytes_of(self, id_: int) -> int:
        """Of a buffer, as this device has it."""
        op, rows = self.program.ops[id_], self.rows(id_)
        return op.bytes if rows is None else int(op.row_bytes * rows)

    @property
    def single(self) -> bool:
        """Is there but one strip in every segment?"""
        return all(segment.single for segment in self.segments)


def schedule(
    program: Program,
    strip_rows: int,
    places: Mapping[int, Place] | None = None,
    cuts: Mapping[int, int] | None = None,
    *,
    deep: bool = False,
    recomputed: Collection[int] = (),
    slides: Collection[int] = (),
) -> Schedule:
    """Cut a program at its barriers and divide its input rows into strips of ``strip_rows``.

    places: of the buffers that are not to live on the device; see ``movable``. cuts: number of further cuts before each
    op among those that pass the same barriers (see ``optional_cuts``). deep: see ``levels``. recomputed: values to
    compute once more in each segment that reads them, rather than store them. slides: numbers of the segments whose
    strips do (see ``sliding``). Raises PlanError.
    """
    plan = cut_up(program, strip_rows, cuts, deep=deep, recomputed=recomputed, slides=slides)
    return placed(plan, places or {})


def cut_up(
    program: Program,
    strip_rows: int,
    cuts: Mapping[int, int] | None = None,
    *,
    deep: bool = False,
    recomputed: Collection[int] = (),
    slides: Collection[int] = (),
) -> Schedule:
    """The same before values are written over buffers and buffers are placed."""
    if strip_rows < 1:
        raise PlanError(f"a strip has at least one row, not {strip_rows}")
    ops = program.ops
    level = _with_cuts(levels(program, deep=deep), cuts or {})
    given = program.given
    stored = _stored(program, level, given, recomputed) | given
    strips = strips_of(program, strip_rows)
    members: list[list[Op]] = [[] for _ in range(1 + max(level.values(), default=0))]
    for i in sorted(level.keys() - given):
        members[level[i]].append(ops[i])
    cut = [_members(ops, here, level, stored, given, n) for n, here in enumerate(members)]
    used: dict[int, int] = {}
    for n, (whole, _body, _sinks, reads) in enumerate(cut):
        for id_ in (*reads, *whole, *(j for w in whole for j in ops[w].inputs)):
            used[id_] = n
    for n, (_whole, body, sinks, _reads) in enumerate(cut):
        for id_ in (*sinks, *(j for b in body for j in ops[b].inputs if ops[j].axis is None or j in stored)):
            used[id_] = max(used.get(id_, n), n)
    kept = {*program.outputs, *program.params} | ({*program.inputs} - program.handed_over)
    drops: list[list[int]] = [[] for _ in cut]
    for id_, at in used.items():
        if id_ not in kept:
            drops[at].append(id_)
    segments = []
    for n, (whole, body, sinks, reads) in enumerate(cut):
        slide = n in slides and len(strips) > 1
        together = program.ranks is not None  # a buffer has rows of other ranks beside a strip's own
        segments.append(Segment(whole, body, sinks, reads, tuple(drops[n]), strips, slides=slide, buffered=together))
    return Schedule(program, tuple(segments), stored, strip_rows, defer=True)


def placed(plan: Schedule, places: Mapping[int, Place], *, defer: bool = False) -> Schedule:
    """The same strips with these buffers elsewhere. Values are written over buffers that are no longer needed, where
    they can.

    defer: with deferred writes, for strips that read rows beyond their own: at the price of a copy.
    """
    program, changed = plan.program, {i for i, _ in places.items() ^ plan.places.items()}
    segments = []
    for segment in plan.segments:
        if defer == plan.defer and changed.isdisjoint(segment.reads) and changed.isdisjoint(segment.sinks):
            segments.append(segment)
            continue
        dying = (segment.reads & set(segment.drops)) - program.given - places.keys()
        reuse = reused(program.ops, segment, dying, places)
        later, over = defer and not segment.slides, dying - set(reuse.values())
        deferred = deferred_writes(program.ops, segment, over, places, reuse) if later else {}
        # what overwrites a buffer comes last, so that nothing that may fail comes after it
        late = reuse.keys() | {i for i in segment.sinks if (r := program.ops[i].reduction) and r.source in reuse}
        body = tuple(sorted(segment.body, key=lambda i: (i in late, i)))
        segments.append(replace(segment, body=body, reuse={**reuse, **deferred}, deferred=frozenset(deferred)))
    rows = rooms(program, segments, program.ranks.rank) if program.ranks else {}
    return replace(plan, segments=tuple(segments), places=dict(places), defer=defer, rooms=rows)


def movable(plan: Schedule) -> list[int]:
    """Buffers that may live anywhere, because every reader needs only some rows at a time."""
    program = plan.program
    made = {i for segment in plan.segments for i in segment.sinks if not program.ops[i].reduction}
    return sorted((made & by_rows(program, program.chunkable)) - {*program.inputs, *program.outputs})


def by_rows(program: Program, chunkable: Collection[int] = ()) -> set[int]:
    """Values that no op needs as a whole. Of those in ``chunkable``, ops that read them whole can also take chunks."""
    whole: set[int] = set()
    for op in program.ops:
        chunked = op.chunked.sources if op.chunked else ()
        whole |= {i for i in op.whole_reads if i not in chunkable or i not in chunked}
    whole |= {i for op in program.ops if op.axis is None and op.reduction is None for i in op.inputs}
    return {op.id for op in program.ops if op.axis is not None} - whole - program.params.keys()


def _with_cuts(level: Mapping[int, int], cuts: Mapping[int, int]) -> dict[int, int]:
    pairs = {i: (n, cuts.get(i, 0)) for i, n in level.items()}
    rank = {pair: at for at, pair in enumerate(sorted(set(pairs.values())))}
    return {i: rank[pair] for i, pair in pairs.items()}


def _stored(
    program: Program, level: dict[int, int], given: frozenset[int], recomputed: Collection[int]
) -> frozenset[int]:
    """Tiled values kept across a cut: outputs, whole reads, and what a later segment uses but should not make again."""
    ops = program.ops
    stored = {i for i in program.outputs if ops[i].axis}
    made = {*recomputed, *without_work(program)}
    uses = [(i, level[o.id]) for o in ops if o.id in level for i in o.inputs if i in level]
    for op in ops:
        if op.id in level:
            stored |= {i for i in op.whole_reads if ops[i].axis and read_from_buffer(ops[i], op)}
    seen: set[tuple[int, int]] = set()
    while uses:
        id_, at = uses.pop()
        op = ops[id_]
        if (id_, at) in seen or op.constant or op.axis is None or id_ in given or level[id_] == at:
            continue
        seen.add((id_, at))
        if (op.cheap or id_ in made) and id_ not in stored:
            uses += [(i, at) for i in op.inputs]
        else:
            stored.add(id_)
    return frozenset(stored)


def _members(
    ops: list[Op], here: list[Op], level: Mapping[int, int], kept: frozenset[int], given: frozenset[int], n: int
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], frozenset[int]]:
    """(whole, body, sinks, reads) of segment ``n``, which the ops ``here`` are of."""
    whole = tuple(o.id for o in here if o.axis is None and o.reduction is None)
    sinks = tuple(o.id for o in here if o.reduction or (o.axis and o.id in kept))
    body: set[int] = set()
    reads: set[int] = set()
    stack = list(sinks)
    while stack:
        id_ = stack.pop()
        if id_ in body:
            continue
        body.add(id_)
        for i in ops[id_].inputs:
            source = ops[i]
            if source.axis is None:
                if source.reduction:
                    reads.add(i)
            elif i in kept and (level[i] < n or i in given):
                reads.add(i)
            else:
                stack.append(i)
    return whole, tuple(sorted(body)), sinks, frozenset(reads)
