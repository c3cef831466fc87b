"""All ways to compute one picture or clip in one call: ours in budgets, the model's own; what each took, and how far
from one another the results are."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from card import GIB

from measuring.apart import Apart, Outcome
from measuring.compare import compared
from measuring.rows import Row, Rows

__all__ = ["LARGE", "Part"]

LARGE = 8192
"""From this side on one warm run, above it none."""


class Part:
    """All ways of one picture or clip."""

    def __init__(
        self,
        name: str,
        size: str,
        ways: Sequence[str],
        options: argparse.Namespace,
        apart: Apart,
        row: str | None = None,
    ) -> None:
        """name: [config/]side. size: N, WxH or WxHxT. row: a name for the table."""
        self._row_name = {} if row is None else {"row": row}
        self._config, _, self._side = name.rpartition("/")
        self._config = self._config or "sdxl"
        self._size, self._ways, self._options, self._apart = size, ways, options, apart
        width, height, frames = (
            (*map(int, size.split("x")), None, None)[:3] if "x" in size else (int(size),) * 2 + (None,)
        )
        self._clip = width, height, frames
        self._files: dict[str, Path] = {}
        self._seconds: float | None = None
        self._own: float | None = None
        self._least: float | None = None

    def measure(self, rows: Rows, folder: Path) -> None:
        """A row for each way. Results are in the folder only as long as they are compared with."""
        for way in self._ways:
            names = {**self._row_name, "config": self._config, "side": self._side, "size": self._size, "way": way}
            rows.measure(names, lambda w=way: self._rows(w, rows.left, folder))  # type: ignore[misc]
        for file in self._files.values():
            file.unlink(missing_ok=True)

    def _rows(self, way: str, left: float, folder: Path) -> Iterator[Row]:
        file = folder / f"{self._config}-{self._side}-{self._size}-{way}.pt"
        budget = self._budget(way)
        longest = max(self._clip[:2])
        warm = 0 if longest > LARGE else 1 if longest == LARGE else self._options.warm
        outcome = self._apart.run(
            "whole",
            {
                "config": self._config,
                "tiny": self._options.tiny,
                "side": self._side,
                "size": self._clip,
                "way": {"diffusers32": "diffusers"}.get(way, way if way in ("diffusers", "tiled") else "ours"),
                "dtype": "float32" if way.endswith("32") else "bfloat16",
                "device": self._options.device,
                "preset": self._options.preset,
                "vram": budget,
                "runs": 0 if way.endswith("32") else warm,
                "save": str(file),
            },
            seconds=min(left + 60, self._options.longest),
            cap=int(budget * GIB) if budget is not None and not self._options.no_cap else None,
        )
        yield self._row(way, budget, outcome, file)

    def _budget(self, way: str) -> float | None:
        if way == "least":
            if self._least is None:
                raise ValueError("least: no row before it said how little would do")
            return self._least
        return float(way) or None if way.replace(".", "").isdigit() else None

    def _row(self, way: str, budget: float | None, outcome: Outcome, file: Path) -> Row:
        answer = outcome.answer
        if (least := answer.get("least")) is not None:
            self._least = (-(-least // 2**20) + 1) / 1024
        if "refused" in answer:
            return {"refused": True, "least": least, "note": f"refused: {answer['refused']}"}
        sizes = {key: answer[key] / GIB for key in ("said", "said_host", "said_disk", "tensors") if key in answer}
        row: Row = {**answer, **sizes, "device": outcome.device / GIB, "host": outcome.host / GIB}
        row |= {"capped": outcome.capped, "device_bytes": outcome.device, "warm": answer["seconds"]}
        row["beside"] = row["device"] - row["tensors"]
        if answer.get("said") and answer["tensors"]:
            row["ratio"] = answer["said"] / answer["tensors"]
        took = answer["seconds"] or answer["first"]
        if answer.get("work"):
            row["s_TFLOP"] = took / (answer["work"] / 1e12)
        if way == "0":
            self._seconds = took
        elif budget is not None and self._seconds:
            row["times"] = took / self._seconds
        row |= self._compared(way, file)
        row["met"] = self._met(budget, outcome, row)
        return row

    def _compared(self, way: str, file: Path) -> Row:
        """Distance from the run without a budget, and from the run in float32 if there is one."""
        row: Row = {}
        if "0" in self._files:
            row["differs"], row["identical"] = compared(file, self._files["0"])
        exact = self._files.get("float32") or self._files.get("diffusers32")
        if exact is not None:
            row["error"], _ = compared(file, exact)
            if self._own is not None:
                row["of_own"] = row["error"] / self._own
            elif way in ("diffusers", "0"):
                self._own = row["error"]
        if way in ("0", "float32", "diffusers32"):
            self._files[way] = file
        else:
            file.unlink()
        return row

    def _met(self, budget: float | None, outcome: Outcome, row: Row) -> str | None:
        if budget is None:
            return None
        kept = outcome.device <= budget * GIB and "note" not in outcome.answer
        said = 0.9 <= row.get("ratio", 1.0) <= 1.1
        shown = row.get("identical") or "of_own" in row
        exact = row.get("identical") or row.get("of_own", 0.0) <= 1.02
        wrong = [word for word, fine in (("memory", kept), ("said", said), ("numbers", exact)) if not fine]
        return (f"no: {', '.join(wrong)}" if wrong else "yes") + ("" if shown else " (numbers not compared)")
