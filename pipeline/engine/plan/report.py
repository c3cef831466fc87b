"""A schedule told to a person: the queue of segments, what cuts them, what they keep, and the bytes they will take.

Under the queue every buffer has a bar, over the segments in which it exists.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tvae.pipeline.engine.ir.program import Op
from tvae.pipeline.engine.plan.footprint import footprint
from tvae.pipeline.engine.plan.machine import Bound
from tvae.pipeline.engine.plan.received import halo_bytes, halo_rows
from tvae.pipeline.engine.plan.schedule import Place, Schedule, Segment

__all__ = ["BufferPlan", "Plan", "SegmentPlan", "explain", "size_text", "time_text"]

_WIDEST_BAR = 48
"""Characters; a bar of more segments is drawn smaller."""

_ELSEWHERE: dict[Place, str] = {"host": "on the host", "disk": "on disk", "caller": "handed out"}


@dataclass(frozen=True)
class SegmentPlan:
    """One segment. Bytes are of the whole segment at its widest; halo is in rows of the buffer that needs most."""

    modules: str
    ends_with: str
    strips: int
    strip_rows: int
    halo: int
    stored_bytes: int
    strip_bytes: int
    recompute: float
    bands: int = 1
    """Of rows that each strip of frames is computed in."""

    @property
    def loop(self) -> str:
        """Strips, and the bands inside each."""
        return str(self.strips) if self.bands == 1 else f"{self.strips}x{self.bands}"


@dataclass(frozen=True)
class BufferPlan:
    """One value that is kept whole. place: device, host, disk, or caller (comes or goes by rows). first, last: the
    segments in which it exists. over: number of the buffer whose memory it takes."""

    name: str
    bytes: int
    place: str
    first: int
    last: int
    over: int | None = None


@dataclass(frozen=True)
class Plan:
    """What will run, before it runs. ``str(plan)`` is a table."""

    side: str
    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    dtype: str
    strip_rows: int
    strips: int
    """Rows of the highest strips, and the fewest that a segment has."""
    segments: tuple[SegmentPlan, ...]
    buffers: tuple[BufferPlan, ...]
    weight_bytes: int
    peak_bytes: int
    """Predicted peak of buffers, strips, input and output together, without weights and library workspaces."""
    host_bytes: int = 0
    disk_bytes: int = 0
    """Predicted peak of the buffers that live there."""
    moved_bytes: int = 0
    """To and from host and disk, and rows that come and go at the caller's."""
    work: float = 0.0
    """Floating-point operations of convolutions, linear layers and attention, halo rows included."""
    least_bytes: int = 0
    """The peak that a plan with the lowest strips and every buffer elsewhere would have: no budget below it works."""
    least_budget: int = 0
    """The smallest budget that works, as it has to be named: with all that the process holds besides."""
    seconds: float = 0.0
    """An estimate, good for comparing plans."""
    bound: Bound = "arithmetic"
    """What takes most of it."""
    whole: tuple[str, ...] = ()
    """What makes some of it run on whole values rather than in strips: operations, their modules, and why."""
    bands: tuple[tuple[int, int], ...] = ()
    """Of a plan that ranks share: the rows of the input that each of them owns. All else is of this rank."""
    rank: int = 0
    received_bytes: int = 0
    """Rows that come from the other ranks."""
    halo_rows: int = 0
    """The most of one buffer that come because of their nearness; of those that are read whole all come."""
    bands_of: Literal["rows", "frames"] = "rows"
    """What ``bands`` divide: the height, or the time of a clip."""

    def to_json(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            **{k: v for k, v in vars(self).items() if k not in ("segments", "buffers")},
            "segments": [vars(s) for s in self.segments],
            "buffers": [vars(b) for b in self.buffers],
        }

    def __str__(self) -> str:
        shape = "x".join(map(str, self.input_shape))
        result = "x".join(map(str, self.output_shape))
        strips = _range(self.strips, *(s.strips for s in self.segments))
        rows = _range(self.strip_rows, *(s.strip_rows for s in self.segments))
        loop = f"{strips} strips of {rows} rows" if self.segments else "not in strips"
        lines = [
            f"{self.side} {shape} -> {result}, {self.dtype}, {loop}",
            f"{'#':>3}  {'modules':<42} {'ends with':<22} {'strips':>6} {'halo':>4} {'work':>6} {'stored':>10} "
            f"{'strip':>10}",
        ]
        for n, s in enumerate(self.segments):
            lines.append(
                f"{n:>3}  {_shortened(s.modules, 42):<42} {_shortened(s.ends_with, 22):<22} {s.loop:>6} {s.halo:>4} "
                f"{s.recompute:>5.2f}x {size_text(s.stored_bytes):>10} {size_text(s.strip_bytes):>10}"
            )
        lines += self._bars()
        lines += [f"runs whole, exact but in more memory than strips: {one}" for one in self.whole]
        lines.append(
            f"weights {size_text(self.weight_bytes)}, predicted peak of activations {size_text(self.peak_bytes)}"
        )
        if self.least_bytes:
            lines[-1] += f" ({size_text(self.least_bytes)} at least)"
        if self.host_bytes or self.disk_bytes:
            away = ", ".join(
                f"{size_text(n)} {at}"
                for n, at in ((self.host_bytes, "on the host"), (self.disk_bytes, "on disk"))
                if n
            )
            lines.append(f"buffers elsewhere: {away}; {size_text(self.moved_bytes)} moved")
        if self.bands:
            first, last = self.bands[self.rank]
            of = f"{self.bands_of} {first} to {last - 1} of the input, device {self.rank + 1} of {len(self.bands)}"
            lines.append(f"{of}; {size_text(self.received_bytes)} come from the others")
        if self.seconds:
            lines.append(f"{self.work / 1e12:.3g} TFLOP; estimated time {time_text(self.seconds)}")
        if self.least_budget:
            lines.append(f"the smallest budget that works: {-(-self.least_budget // 2**20)} MiB")
        return "\n".join(lines)

    def _bars(self) -> list[str]:
        """A line for every buffer, with a bar from left to right over the queue."""
        count = max(1, len(self.segments))
        width = min(count, _WIDEST_BAR)
        lines = [f"{'buffer':>6}  {'alive':<{max(width + 2, 5)}} {'size':>10}  {'where':<16} made by"]
        for n, b in enumerate(self.buffers):
            first, last = b.first * width // count, b.last * width // count
            bar = f"│{' ' * first}{'█' * (last - first + 1)}{' ' * (width - last - 1)}│"
            bar = f"{bar:<{max(width + 2, 5)}}"
            where = b.place if b.over is None else f"{b.place}, over {b.over}"
            name = _shortened(b.name, 120 - 8 - len(bar) - 13 - 17)
            lines.append(f"{n:>6}  {bar} {size_text(b.bytes):>10}  {where:<16} {name}")
        return lines


def explain(schedule: Schedule, side: str) -> Plan:
    """Describe a schedule and predict its memory."""
    program, ops = schedule.program, schedule.program.ops
    cost = footprint(schedule)
    whole = {i for op in ops for i in op.whole_reads}
    segments = tuple(
        SegmentPlan(
            _modules([ops[i] for i in segment.body]),
            _ending(segment, ops, schedule.places, whole, segment is schedule.segments[-1]),
            len(segment.strips),
            segment.strips[0][1] - segment.strips[0][0],
            taken.halo,
            taken.stored,
            taken.strip,
            taken.recompute,
            max(1, len(segment.bands)),
        )
        for segment, taken in zip(schedule.segments, cost.segments, strict=True)
        if segment.body
    )
    first, last = ops[program.inputs[0]], ops[program.outputs[0]]
    travelling = {op.id for op in ops if op.kind == "call"} | program.handed_over  # other inputs are given to all ranks
    return Plan(
        side,
        first.shape,
        last.shape,
        str(first.dtype).removeprefix("torch."),
        max((segment.strip_rows for segment in segments), default=schedule.program.rows),
        min((segment.strips for segment in segments), default=1),
        segments,
        _buffers(schedule),
        sum(ops[i].bytes for i in program.params),
        cost.device,
        cost.host,
        cost.disk,
        cost.moved,
        cost.work,
        whole=program.whole,
        bands=program.ranks.bands if program.ranks else (),
        rank=program.ranks.rank if program.ranks else 0,
        received_bytes=sum(halo_bytes(schedule, i) for i in schedule.rooms if i in travelling),
        bands_of="frames" if len(first.shape) == 5 and first.axis is not None and first.axis.dim == 2 else "rows",
        halo_rows=max((halo_rows(schedule, i) for i in schedule.rooms if i in travelling - whole), default=0),
    )


def _buffers(schedule: Schedule) -> tuple[BufferPlan, ...]:
    """Inputs, results and boundaries, in the order in which they are made."""
    program, ops = schedule.program, schedule.program.ops
    shown = [n for n, segment in enumerate(schedule.segments) if segment.body]
    end = max(0, len(shown) - 1)
    at = [min(sum(s < n for s in shown), end) for n in range(len(schedule.segments))]
    found = dict.fromkeys(program.inputs, (0, end))
    over: dict[int, int] = {}
    for n, segment in enumerate(schedule.segments):
        found |= {i: (at[n], end) for i in segment.sinks if not ops[i].reduction and i not in program.inputs}
        over |= segment.reuse
    for n, segment in enumerate(schedule.segments):
        for id_ in segment.drops:
            if id_ in found:
                found[id_] = found[id_][0], at[n]
    order = sorted(found, key=lambda i: (found[i][0], i))
    number = {i: n for n, i in enumerate(order)}
    return tuple(
        BufferPlan(
            f"{ops[i].module or '-'} {ops[i].name}",
            schedule.bytes_of(i),
            schedule.places.get(i, "device"),
            *found[i],
            number[over[i]] if i in over else None,
        )
        for i in order
    )


def _modules(ops: list[Op]) -> str:
    names = list(dict.fromkeys(o.module for o in ops if o.module))
    if not names:
        return "-"
    return names[0] if len(names) == 1 else f"{names[0]} .. {names[-1]}"


def _ending(segment: Segment, ops: list[Op], places: Mapping[int, Place], whole: set[int], last: bool) -> str:
    """What cuts the segment off (statistics, a value that is read as a whole, or a cut that saves work), and what it
    keeps for later, some of it in place of others or elsewhere."""

    def kept(id_: int) -> str:
        if id_ in segment.reuse:
            return "in place"
        return _ELSEWHERE[places[id_]] if id_ in places else "kept"

    counts = Counter(ops[i].name if ops[i].reduction else kept(i) for i in segment.sinks)
    told = [f"{n} {name}" if n > 1 or not name.endswith("stats") else name for name, n in counts.items()]
    if whole.intersection(segment.sinks):
        told.append("whole read")
    elif not last and not any(ops[i].reduction for i in segment.sinks):
        told.append("cut")
    return ", ".join(told)


def _range(*numbers: int) -> str:
    lowest, highest = min(numbers), max(numbers)
    return f"{lowest}" if lowest == highest else f"{lowest} to {highest}"


def _shortened(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width // 2 - 1]}…{text[-(width - width // 2) :]}"


def size_text(count: float) -> str:
    """Bytes for a person."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.2f} GiB"


def time_text(seconds: float) -> str:
    """Of an estimate."""
    return f"{seconds:.3g} s" if seconds < 100 else f"{seconds / 60:.3g} min"
