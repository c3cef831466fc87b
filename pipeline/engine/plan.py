"""A schedule told to a person: the queue of segments, what cuts them, what they keep, and the bytes they will take."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from tvae.pipeline.engine.bounds import demanded, owned
from tvae.pipeline.engine.program import Op
from tvae.pipeline.engine.schedule import Schedule, Segment

__all__ = ["Plan", "SegmentPlan", "explain"]

_VIEWS = {
    *("view", "reshape", "flatten", "unflatten", "permute", "transpose", "movedim", "slice", "select", "narrow"),
    *("squeeze", "unsqueeze", "expand", "getitem", "split", "chunk", "alias", "detach"),
}


@dataclass(frozen=True)
class SegmentPlan:
    """One segment. Bytes are of the whole segment at its widest; halo is in rows of the buffer that needs most."""

    modules: str
    ends_with: str
    strips: int
    halo: int
    stored_bytes: int
    strip_bytes: int
    recompute: float


@dataclass(frozen=True)
class Plan:
    """What will run, before it runs. ``str(plan)`` is a table."""

    side: str
    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    dtype: str
    strip_rows: int
    strips: int
    segments: tuple[SegmentPlan, ...]
    weight_bytes: int
    peak_bytes: int
    """Predicted peak of buffers, strips, input and output together, without weights and library workspaces."""

    def to_json(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            **{k: v for k, v in vars(self).items() if k != "segments"},
            "segments": [vars(s) for s in self.segments],
        }

    def __str__(self) -> str:
        shape = "x".join(map(str, self.input_shape))
        result = "x".join(map(str, self.output_shape))
        lines = [
            f"{self.side} {shape} -> {result}, {self.dtype}, {self.strips} strips of {self.strip_rows} rows",
            f"{'#':>3}  {'modules':<46} {'ends with':<22} {'halo':>4} {'work':>6} {'stored':>10} {'strip':>10}",
        ]
        for n, s in enumerate(self.segments):
            lines.append(
                f"{n:>3}  {_shortened(s.modules, 46):<46} {_shortened(s.ends_with, 22):<22} {s.halo:>4} "
                f"{s.recompute:>5.2f}x {_size(s.stored_bytes):>10} {_size(s.strip_bytes):>10}"
            )
        lines.append(f"weights {_size(self.weight_bytes)}, predicted peak of activations {_size(self.peak_bytes)}")
        return "\n".join(lines)


def explain(schedule: Schedule, side: str) -> Plan:
    """Describe a schedule and predict its memory."""
    program, ops = schedule.program, schedule.program.ops
    given = set(program.inputs) | set(program.outputs)
    base = sum(ops[i].bytes for i in given)
    live: set[int] = set()
    peak, segments = base, []
    for segment in schedule.segments:
        live |= {i for i in segment.sinks if not ops[i].reduction and i not in given}
        stored = sum(ops[i].bytes for i in live)
        strip, halo, work = _widest(schedule, segment)
        peak = max(peak, base + stored + strip)
        if segment.body:
            segments.append(
                SegmentPlan(
                    _modules([ops[i] for i in segment.body]), _ending(segment, ops), len(segment.strips), halo, stored,
                    strip, work,
                )
            )  # fmt: skip
        live -= set(segment.drops)
    first, last = ops[program.inputs[0]], ops[program.outputs[0]]
    return Plan(
        side,
        first.shape,
        last.shape,
        str(first.dtype).removeprefix("torch."),
        schedule.strip_rows,
        len(schedule.segments[0].strips),
        tuple(segments),
        sum(ops[i].bytes for i in program.params),
        peak,
    )


def _widest(schedule: Schedule, segment: Segment) -> tuple[int, int, float]:
    """(bytes alive at once in the fullest strip, halo rows, rows computed per row owned, weighted by bytes)."""
    ops, total = schedule.program.ops, schedule.program.rows
    last = {i: b for b in segment.body for i in ops[b].inputs}
    peak, halo, computed, needed = 0, 0, 0.0, 0.0
    for strip in segment.strips:
        wanted = demanded(ops, segment.body, segment.sinks, segment.reads, strip, total)
        held: dict[int, float] = {}
        for id_ in segment.body:
            op = ops[id_]
            if id_ not in wanted or op.reduction or op.axis is None:
                continue
            rows = wanted[id_][1] - wanted[id_][0]
            held[id_] = 0 if op.name in _VIEWS else op.row_bytes * rows
            own = owned(op.axis.rows, strip, total)
            computed += op.row_bytes * rows
            needed += op.row_bytes * (own[1] - own[0])
            peak = max(peak, int(sum(held.values())))
            for i in op.inputs:
                if last[i] == id_:
                    held.pop(i, None)
        for id_ in segment.reads & wanted.keys():
            axis = ops[id_].axis
            if axis is not None:
                own = owned(axis.rows, strip, total)
                halo = max(halo, own[0] - wanted[id_][0], wanted[id_][1] - own[1])
    return peak, halo, computed / needed if needed else 1.0


def _modules(ops: list[Op]) -> str:
    names = list(dict.fromkeys(o.module for o in ops if o.module))
    if not names:
        return "-"
    return names[0] if len(names) == 1 else f"{names[0]} .. {names[-1]}"


def _ending(segment: Segment, ops: list[Op]) -> str:
    """What the segment leaves behind: statistics, and values kept for later."""
    counts = Counter(ops[i].name if ops[i].reduction else "kept" for i in segment.sinks)
    return ", ".join(f"{n} {name}" if n > 1 or name == "kept" else name for name, n in counts.items())


def _shortened(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width // 2 - 1]}…{text[-(width - width // 2) :]}"


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.2f} GiB"
