"""Bar charts of what was measured. matplotlib is an optional extra."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from tvae.pipeline.bench.job import JobRow
from tvae.pipeline.bench.kernels import KernelRow
from tvae.pipeline.bench.vae import VaeRow
from tvae.pipeline.errors import UsageError
from tvae.pipeline.files.atomic import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["check_plot", "plot_job", "plot_kernels", "plot_vae"]

MIB = 1 << 20


def check_plot(path: Path) -> None:
    """UsageError when no chart could be written here: to be asked before measuring."""
    if path.suffix.lower() != ".png":
        raise UsageError(f"--plot {path}: a chart is a .png file")
    if path.exists():
        raise UsageError(f"--plot {path} exists; name another file")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--plot {path}: there is no folder '{path.absolute().parent}'")
    if find_spec("matplotlib") is None:
        raise UsageError("--plot needs matplotlib: pip install 'tvae[bench]', or leave --plot out")


def plot_kernels(rows: Sequence[KernelRow], title: str, path: Path) -> None:
    """Share of the ceiling by operation, a bar for each level; what was not measured leaves a gap."""
    values = {(row.operation, row.level): 100 * row.share for row in rows if row.share is not None}
    operations, levels = (list(dict.fromkeys(key[i] for key in values)) for i in (0, 1))
    figure = _figure(max(7.0, 1.3 * len(operations) + 1), 4.5, title)
    axes = figure.add_subplot()
    width = 0.8 / max(1, len(levels))
    for index, level in enumerate(levels):
        at = {i + (index - (len(levels) - 1) / 2) * width: values.get((o, level)) for i, o in enumerate(operations)}
        there = {place: value for place, value in at.items() if value is not None}
        axes.bar_label(axes.bar(list(there), list(there.values()), width, label=level), fmt="%.0f", fontsize=7)
    axes.set_xticks(range(len(operations)), operations, fontsize=8)
    axes.set_ylabel("% of the measured ceiling")
    if levels:
        axes.legend()
    _save(figure, path)


def plot_vae(rows: Sequence[VaeRow], title: str, path: Path) -> None:
    """Time, memory and error: a line of panels for each case (their sizes differ too much for one axis), a bar for each
    rival. What was measured of nobody, such as memory on a CPU, has no panels."""
    cases = list(dict.fromkeys(row.case for row in rows))
    panels = [panel for panel in _PANELS if any(panel.value(row) is not None for row in rows)] or [*_PANELS[:1]]
    figure = _figure(max(6.0, 4.2 * len(panels)), 2.4 * max(1, len(cases)) + 0.6, title)
    for line, case in enumerate(cases):
        here = [row for row in rows if row.case == case]
        for column, panel in enumerate(panels):
            axes = figure.add_subplot(len(cases), len(panels), line * len(panels) + column + 1)
            _draw(axes, panel, here)
            if column == 0:
                frames = "" if case.frames is None else f"x{case.frames}"
                axes.set_title(f"{case.side} {case.width}x{case.height}{frames}, batch {case.batch}", fontsize=9)
    _save(figure, path)


def plot_job(rows: Sequence[JobRow], title: str, path: Path) -> None:
    """Items a second, and the share of the time that each stage is at work. What had too few items leaves a gap."""
    figure = _figure(9.0, 2.8, title)
    names = [row.what for row in rows]
    rates, shares = figure.add_subplot(1, 2, 1), figure.add_subplot(1, 2, 2)
    bars = rates.barh(names, [row.rate or 0.0 for row in rows])
    labels = [_number(row.rate, ".3g") if row.rate else "too few" for row in rows]
    rates.bar_label(bars, labels, padding=2, fontsize=8)
    rates.set_xscale("log")
    known = [row.rate for row in rows if row.rate] or [1.0]
    rates.set_xlim(min(known) / 3, max(known) * 6)
    rates.set_xlabel("items a second", fontsize=8)
    for number, stage in enumerate(("read", "compute", "write")):
        places = [place + (number - 1) * 0.27 for place in range(len(rows))]
        shares.barh(places, [100 * (row.stages or {}).get(stage, 0.0) for row in rows], 0.25, label=stage)
    shares.set_yticks(range(len(rows)), names)
    shares.set_xlim(0, 100)
    shares.set_xlabel("busy, % of the time", fontsize=8)
    shares.legend(fontsize=8)
    for axes in (rates, shares):
        axes.invert_yaxis()
    _save(figure, path)


@dataclass(frozen=True)
class _Panel:
    """label: of its axis, with the unit."""

    label: str
    value: Callable[[VaeRow], float | None]
    form: str = ".3g"
    logarithmic: bool = False


_PANELS = (
    _Panel("time of a warm call, ms", lambda row: None if row.seconds is None else 1e3 * row.seconds),
    _Panel("peak memory beyond the weights, MiB", lambda row: None if row.peak_bytes is None else row.peak_bytes / MIB),
    _Panel("error, relative L2", lambda row: row.error, ".1e", logarithmic=True),
)


def _draw(axes: Axes, panel: _Panel, rows: Sequence[VaeRow]) -> None:
    """A bar for each row. A row that failed has its status in the place of a number."""
    values = [panel.value(row) for row in rows]
    labels = [
        (row.status if row.status != "ok" else "") if value is None else _number(value, panel.form)
        for row, value in zip(rows, values, strict=True)
    ]
    shown = [value for value in values if value] or [1.0]
    start, end = (min(shown) / 10, max(shown) * 30) if panel.logarithmic else (0.0, max(shown) * 1.25)
    if panel.logarithmic:
        axes.set_xscale("log")
    axes.set_xlim(start, end)
    bars = axes.barh([row.rival for row in rows], [value or start for value in values])
    axes.bar_label(bars, labels, padding=2, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel(panel.label, fontsize=8)


def _number(value: float, form: str) -> str:
    return f"{value:.0f}" if value >= 999.5 else f"{value:{form}}"


def _figure(width: float, height: float, title: str) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=10)
    return figure


def _save(figure: Figure, path: Path) -> None:
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=150)
