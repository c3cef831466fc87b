"""Tables on stdout, and numbers as people read them."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tvae.cli.reporting import printable

__all__ = ["error", "rate", "seconds", "show_table", "size"]


def show_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, texts: int = 1) -> None:
    """The first ``texts`` columns and the last are texts, the others numbers. As wide as it must be in a file."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, name in enumerate(columns):
        table.add_column(name, justify="left" if index < texts or index == len(columns) - 1 else "right")
    for row in rows:
        table.add_row(*map(printable, row))
    width = None if sys.stdout.isatty() else 1000
    Console(highlight=False, markup=False, emoji=False, width=width).print(table)


def seconds(value: float | None) -> str:
    """``1.23 ms``."""
    if value is None:
        return ""
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if value >= scale:
            return f"{_short(value / scale)} {unit}"
    return f"{_short(value * 1e6)} µs"


def size(value: int | None) -> str:
    """``1.20 GiB``."""
    if value is None:
        return ""
    return f"{value / 2**30:.2f} GiB" if value >= 2**30 else f"{value / 2**20:.1f} MiB"


def rate(value: float | None, unit: str) -> str:
    """``3.91 TB/s`` for 3.91e12 and the unit B/s."""
    if value is None:
        return ""
    for prefix, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if value >= scale:
            return f"{_short(value / scale)} {prefix}{unit}"
    return f"{_short(value / 1e3)} k{unit}"


def error(value: float | None) -> str:
    """``1.2e-03``."""
    return "" if value is None else f"{value:.1e}"


def _short(value: float) -> str:
    """Three digits, or all those before the point."""
    return f"{value:.3g}" if value < 999.5 else f"{value:.0f}"
