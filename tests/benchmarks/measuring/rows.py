"""Rows of a table, printed as soon as they are there, and kept as JSON lines; a row that fails is one, too."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

__all__ = ["Row", "Rows"]

Row = dict[str, Any]


class Rows:
    """One table. columns: name -> format of what is printed; other values of a row are in the file alone, but for its
    ``note`` and what was ``heard``.

    until: seconds after which no row is begun any more: those left are named at the end.
    """

    def __init__(self, columns: dict[str, str], out: str | None, until: float, about: Row | None = None) -> None:
        self._columns, self._out, self._begin, self._until = columns, out, time.perf_counter(), until
        self._widths = {name: max(len(name), _width(form)) for name, form in columns.items()}
        self._missed: list[str] = []
        self.rows: list[Row] = []
        if out is not None:
            Path(out).parent.mkdir(parents=True, exist_ok=True)
        if about is not None:
            print(", ".join(f"{key} {value}" for key, value in about.items()), flush=True)
            self._keep({"about": about})
        print("  ".join(f"{name:<{self._widths[name]}}" for name in columns) + "  s", flush=True)

    @property
    def left(self) -> float:
        """Seconds until no row is begun any more."""
        return self._until - (time.perf_counter() - self._begin)

    def add(self, row: Row) -> None:
        """Print a row, and keep it."""
        self.rows.append(row)
        row["elapsed"] = round(time.perf_counter() - self._begin, 1)
        cells = (f"{_cell(row.get(name), form):<{self._widths[name]}}" for name, form in self._columns.items())
        told = [row["note"]] if row.get("note") else []
        note = "".join(f"  {text}" for text in (*told, *(text[:160] for text in row.get("heard") or ())))
        print("  ".join(cells) + f"  {row['elapsed']:.0f}" + note, flush=True)
        self._keep(row)

    def measure(self, names: Row, run: Callable[[], Iterable[Row]]) -> None:
        """Adds the rows that ``run`` gives, as they come. One that fails becomes a row with its error's last line."""
        if self.left <= 0:
            self._missed.append(" ".join(str(value) for value in names.values()))
            return
        try:
            for row in run():
                self.add({**names, **row})
        except Exception as error:  # the next row may well do
            lines = [line for line in str(error).splitlines() if line.strip()] or [""]
            self.add({**names, "failed": True, "note": f"FAILED {type(error).__name__}: {lines[-1].strip()[:300]}"})

    def end(self) -> Sequence[Row]:
        """Says what there was no time for."""
        for name in self._missed:
            print(f"no time left for: {name}", flush=True)
        return self.rows

    def _keep(self, row: Row) -> None:
        if self._out is not None:
            with open(self._out, "a", encoding="utf-8") as file:
                file.write(json.dumps(row, default=str) + "\n")


def _width(form: str) -> int:
    digits = "".join(c for c in form.split(".")[0] if c.isdigit())
    return int(digits or 1)


def _cell(value: Any, form: str) -> str:
    """Nothing for what was not measured."""
    return "" if value is None else value.__format__("" if isinstance(value, str) else form)
