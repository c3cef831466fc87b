"""Bar charts of what was measured. matplotlib is an optional extra."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from tvae.pipeline.bench.kernels import KernelRow
from tvae.pipeline.bench.vae import VaeRow
from tvae.pipeline.errors import UsageError
from tvae.pipeline.files.atomic import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["check_plot", "plot_kernels", "plot_vae"]


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
    """Milliseconds, a panel for each case (their sizes differ too much for one axis), a bar for each rival."""
    cases = list(dict.fromkeys(row.case for row in rows))
    columns = max(1, min(3, len(cases)))
    lines = max(1, -(-len(cases) // columns))
    figure = _figure(4.2 * columns, 2.6 * lines + 0.6, title)
    for index, case in enumerate(cases):
        axes = figure.add_subplot(lines, columns, index + 1)
        here = [row for row in rows if row.case == case]
        bars = axes.barh([row.rival for row in here], [1e3 * (row.seconds or 0.0) for row in here])
        axes.bar_label(bars, [_label(row) for row in here], padding=2)
        axes.margins(x=0.2)
        axes.invert_yaxis()
        frames = "" if case.frames is None else f"x{case.frames}"
        axes.set_title(f"{case.side} {case.width}x{case.height}{frames}, batch {case.batch}", fontsize=9)
        axes.set_xlabel("ms, warm median", fontsize=8)
    _save(figure, path)


def _label(row: VaeRow) -> str:
    if row.seconds is None:
        return row.status
    return f"{1e3 * row.seconds:.3g}" if row.seconds < 0.9995 else f"{1e3 * row.seconds:.0f}"


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
