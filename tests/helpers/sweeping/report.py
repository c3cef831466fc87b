"""Results of a sweep: kept as JSON lines, so that another call goes on where one ended, and told as a table."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from sweeping.cells import Cell
from sweeping.check import Result

__all__ = ["Journal", "told"]

Row = dict[str, Any]
_GIB = 1 << 30


class Journal:
    """A file of results, one a line; None keeps nothing. A cell that is begun has a line before its result: one that
    has no other was its process's last."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._rows: dict[tuple[int, int], Row] = {}
        if path is not None and path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                row = json.loads(line)
                self._rows[(row["seed"], row["index"])] = row

    @property
    def rows(self) -> list[Row]:
        """The last of each cell, in order."""
        return [self._rows[key] for key in sorted(self._rows)]

    def done(self, cell: Cell, *, again: bool = False) -> bool:
        """Is there a result? again: one that neither fell short nor built kernels in its time."""
        row = self._rows.get((cell.seed, cell.index))
        return row is not None and not (again and (row["fell"] or row.get("built")))

    def begin(self, cell: Cell) -> None:
        """Before it runs."""
        self._keep({**cell.to_json(), "fell": ["its process ended, or was ended, in this cell"]})

    def end(self, result: Result) -> None:
        """After it ran."""
        self._keep(result.to_json())

    def _keep(self, row: Row) -> None:
        self._rows[(row["seed"], row["index"])] = row
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")


def told(rows: Iterable[Row], worst: int = 8) -> Iterator[str]:
    """Lines: how many cells there are and what of them could not be asked, the worst in each respect, errors by family,
    and every cell that fell short."""
    rows = list(rows)
    ran = [row for row in rows if not row.get("skipped")]
    fell = [row for row in ran if row["fell"]]
    seeds = ", ".join(map(str, sorted({row["seed"] for row in rows})))
    yield f"{len(rows)} cells of seeds {seeds}: {len(fell)} fall short"
    for what, count in _left_out(rows):
        if count:
            yield f"  {count} {what}"
    for title, key, form in _RESPECTS:
        of = sorted((row for row in ran if row.get(key) is not None), key=lambda row: row[key], reverse=True)
        if of:
            yield f"{title}:"
            yield from (f"  {form.format(row[key])}  {_name(row)}{_beside(row, key)}" for row in of[:worst])
    yield from _means(ran)
    for row in fell:
        yield f"FELL SHORT {_name(row)}: {'; '.join(row['fell'])}"


_RESPECTS = (
    ("highest errors over the untiled model's", "of_own", "{:6.3f}"),
    ("highest errors in float32", "error32", "{:8.1e}"),
    ("highest peaks over what was said", "ratio", "{:6.2f}"),
    ("furthest above the peak was what was said", "over", "{:6.2f}"),
    ("fullest budgets", "full", "{:6.3f}"),
    ("longest first calls over the time they have", "late", "{:6.2f}"),
)


def measured(row: Row, times: float = 3.0, seconds: float = 5.0) -> Row:
    """The row with what tables compare. times, seconds: of the first call's limit."""
    found = dict(row)
    if row.get("error") is not None and row["dtype"] == "float32":
        found["error32"] = row["error"]
    large = max(row.get("peak", 0), row.get("said", 0)) >= 1 << 28
    if not large:
        found.pop("ratio", None)
    elif row.get("first_peak", 0) > 0 and not row.get("again"):
        found["over"] = row["said"] / row["first_peak"]
    if row.get("named"):
        found["full"] = row["held"] / row["named"]
    if isinstance(row.get("own_first"), float) and row.get("first") and not row.get("built"):
        found["late"] = row["first"] / (times * row["own_first"] + seconds)
    return found


def _left_out(rows: list[Row]) -> Iterator[tuple[str, int]]:
    yield "the model itself refuses", sum(bool(row.get("skipped")) for row in rows)
    yield "built kernels, their time is not asked", sum(bool(row.get("built")) for row in rows)
    yield (
        "were refused their budget, and ran in the one that was named",
        sum("named" in row and "refused" in row for row in rows),
    )
    yield "wanted more memory than there is", sum(row.get("refused") == "more than there is" for row in rows)
    yield (
        "were held against another plan, the untiled model does not fit",
        sum("another plan" in str(row.get("exact")) for row in rows),
    )
    yield "erred more by chance, and not with other inputs", sum("again_own" in r and not r["fell"] for r in rows)
    yield "overflow in the untiled model", sum("overflows" in str(row.get("exact")) for row in rows)


def _means(rows: list[Row]) -> Iterator[str]:
    """Chance cancels in the mean of many cells, a bias does not."""
    found: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        if row.get("of_own"):
            found[f"{row['family']} {row['side']}"].append(math.log(row["of_own"]))
    if found:
        yield "error over the untiled model's, geometric means of cells in lower types:"
        each = (f"{name} {math.exp(sum(logs) / len(logs)):.3f} ({len(logs)})" for name, logs in sorted(found.items()))
        yield "  " + ", ".join(each)


def _name(row: Row) -> str:
    cell = Cell(**{name: row[name] for name in Cell.__dataclass_fields__})
    return f"{cell.seed}.{cell.index} {cell}"


def _beside(row: Row, key: str) -> str:
    if key == "of_own":
        return f"  {row['own']:.1e}, {row['allowed']:.3f} allowed"
    if key in ("ratio", "over"):
        return f"  {row['peak'] / _GIB:.2f} GiB, said {row['said'] / _GIB:.2f}"
    if key == "full":
        return f"  {row['held'] / _GIB:.2f} GiB of {row['named'] / _GIB:.2f}"
    if key == "late":
        return f"  {row['first']:.1f} s, the untiled model {row['own_first']:.2f}"
    return ""
