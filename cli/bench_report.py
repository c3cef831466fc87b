"""Shows what ``tvae bench`` measures: JSON objects as they come, or tables at the end."""

from __future__ import annotations

import json as js
from collections.abc import Iterable, Iterator
from typing import Any

from tvae.cli import columns
from tvae.cli.bench_request import Setting
from tvae.cli.reporting import printable, tell
from tvae.cli.status_line import StatusLine
from tvae.pipeline.bench.io import IoRow
from tvae.pipeline.bench.job import JobRow
from tvae.pipeline.bench.kernels import Ceiling, KernelRow
from tvae.pipeline.bench.vae import VaeRow

__all__ = ["io", "job", "kernels", "vae"]


def kernels(found: Iterable[Ceiling | KernelRow], setting: Setting, line: StatusLine, *, json: bool) -> list[KernelRow]:
    """All rows, shown."""
    rows: list[KernelRow] = []
    ceilings: list[Ceiling] = []
    for one in found:
        if isinstance(one, Ceiling):
            ceilings.append(one)
            if json:
                _print("ceiling", {**one.to_json(), **_about(setting)})
            continue
        rows.append(one)
        if json:
            _print("kernel", one.to_json())
        line.show(f"{one.operation} at level {one.level}")
    line.clear()
    if not json:
        tell(printable(setting.words))
        for ceiling in ceilings:
            what = "copy" if ceiling.kind == "copy" else "matrix product"
            tell(f"{what}: {columns.rate(ceiling.rate, 'B/s' if ceiling.kind == 'copy' else 'FLOP/s')}")
        names = ("operation", "level", "error", "statistics", "tolerance", "time", "share", "checked", "note")
        columns.show_table(names, [_kernel_cells(row) for row in rows if row.status != "missing"], texts=2)
        tell("* chosen by the preset; share: of the copy, or of the matrix product where arithmetic is the limit")
        if any((row.share or 0) > 1 for row in rows):
            tell("more than 100 %: at this size the maps fit the caches, which a large copy does not")
        for missing in _missing(rows):
            tell(printable(missing))
    return rows


def vae(found: Iterable[VaeRow], name: str, setting: Setting, line: StatusLine, *, json: bool) -> list[VaeRow]:
    """All rows, shown."""
    rows = []
    for row in found:
        rows.append(row)
        if json:
            _print("vae_run", {**row.to_json(), "vae": name, **_about(setting)})
    line.clear()
    if not json:
        tell(printable(f"{name}; {setting.words}"))
        uses = any(row.first_use_seconds is not None for row in rows)
        more = ("first use", "next use") if uses else ()
        names = ("case", "batch", "run", "time", "a frame", "first", *more, "memory", "error", "speed", "note")
        columns.show_table(names, [_vae_cells(row, uses) for row in rows], texts=1)
        tell("time: warm median; first: the first call in this process; memory: peak beyond the weights")
        if uses:
            tell("first use: the first call of a new process, nothing on disk; next use: of the process after that")
        tell("speed: over diffusers untiled, in the better of its layouts that ran here")
    return rows


def job(found: Iterable[JobRow], name: str, setting: Setting, line: StatusLine, *, json: bool) -> list[JobRow]:
    """All rows, shown."""
    rows = []
    for row in found:
        rows.append(row)
        if json:
            _print("job", {**row.to_json(), "vae": name, **_about(setting)})
    line.clear()
    if not json:
        tell(printable(f"{name}; {setting.words}"))
        names = ("job", "items", "failed", "a second", "first", "whole", "reading", "computing", "writing", "note")
        columns.show_table(names, [_job_cells(row) for row in rows])
        tell("a second: after the first quarter of the items; first: until the first result; the others: share busy")
        for row in rows:
            if row.bottleneck:
                tell(printable(f"{row.what}: {row.bottleneck.partition(' (')[0]}"))
    return rows


def io(found: Iterable[IoRow], line: StatusLine, *, json: bool) -> list[IoRow]:
    """All rows, shown."""
    rows = []
    for row in found:
        rows.append(row)
        if json:
            _print("io", row.to_json())
        line.show(row.what)
    line.clear()
    if not json:
        names = ("what", "rate", "frames a second", "time", "note")
        cells = [
            (
                row.what,
                columns.rate(row.bytes_per_second, "B/s"),
                "" if row.frames_per_second is None else f"{row.frames_per_second:.1f}",
                columns.seconds(row.seconds),
                row.note,
            )
            for row in rows
        ]
        columns.show_table(names, cells)
    return rows


def _kernel_cells(row: KernelRow) -> tuple[str, ...]:
    share = "" if row.share is None else f"{100 * row.share:.0f} %"
    note = row.reason or ""
    if row.refused:
        note = f"leaves to the next level: {', '.join(text.partition(':')[0] for text in row.refused)}"
    if row.seconds and row.launched_seconds and row.launched_seconds > 1.1 * row.seconds:
        note = f"{note + '; ' if note else ''}{columns.seconds(row.launched_seconds)} where the host launches it"
    if row.status in ("wrong", "failed"):
        note = f"{row.status.upper()} {note}".rstrip()
    return (
        row.operation,
        f"{row.level}{'*' if row.chosen else ''}",
        columns.error(row.error),
        columns.error(row.statistics),
        columns.error(row.tolerance),
        columns.seconds(row.seconds),
        share,
        str(row.checked or ""),
        note,
    )


def _job_cells(row: JobRow) -> tuple[str, ...]:
    shares = row.stages or {}
    return (
        row.what,
        str(row.items),
        str(row.failed or ""),
        "" if row.rate is None else f"{row.rate:.1f}",
        columns.seconds(row.first_seconds),
        columns.seconds(row.seconds),
        *(f"{100 * shares[stage]:.0f} %" if stage in shares else "" for stage in ("read", "compute", "write")),
        "" if row.rate is not None else "too few items for a rate",
    )


def _missing(rows: list[KernelRow]) -> Iterator[str]:
    """A line for every level and reason."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row.status == "missing":
            reasons.setdefault((row.level, row.reason or ""), []).append(row.operation)
    everything = {row.operation for row in rows}
    for (level, reason), operations in reasons.items():
        which = "" if set(operations) == everything else f" for {', '.join(operations)}"
        yield f"no {level}{which}: {reason}"


def _vae_cells(row: VaeRow, uses: bool) -> tuple[str, ...]:
    case = row.case
    frames = "" if case.frames is None else f"x{case.frames}"
    return (
        f"{case.side} {case.width}x{case.height}{frames}",
        str(case.batch),
        row.rival,
        columns.seconds(row.seconds),
        columns.seconds(row.seconds_per_frame),
        columns.seconds(row.first_seconds),
        *((columns.seconds(row.first_use_seconds), columns.seconds(row.next_use_seconds)) if uses else ()),
        columns.size(row.peak_bytes),
        columns.error(row.error),
        "" if row.speedup is None else f"{row.speedup:.2f}x",
        row.reason or ("" if row.status == "ok" else row.status),
    )


def _about(setting: Setting) -> dict[str, Any]:
    dtype = str(setting.dtype).removeprefix("torch.")
    return {"machine": setting.machine, "device": str(setting.device), "dtype": dtype, "preset": setting.preset.name}


def _print(kind: str, values: dict[str, Any]) -> None:
    tell(js.dumps({"type": kind, **values}, allow_nan=False))
