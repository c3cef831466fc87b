"""The sweep as a command: what it keeps and tells, and a few cells on a CPU with tiny models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from script import script_of
from sweeping.cells import Cell
from sweeping.check import Bench, Result
from sweeping.report import Journal, measured, told

CELL = Cell(1, 0, 0, "random", "taesd", "decode", 96, 64, None, 1, "float32", None, False, False, 1)


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """The command."""
    return script_of("sweep")


def test_a_file_of_results_is_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "of" / "sweep.jsonl"
    cells = [replace(CELL, index=n) for n in range(5)]
    journal = Journal(path)
    for cell in cells[:4]:
        journal.begin(cell)
        if cell.index != 2:
            facts = {"built": 3} if cell.index == 3 else {}
            journal.end(Result(cell, facts, ["short"] if cell.index == 1 else []))
    later = Journal(path)
    assert [later.done(cell) for cell in cells] == [True, True, True, True, False]
    assert [later.done(cell, again=True) for cell in cells] == [True, False, False, False, False]
    assert [row["fell"] for row in later.rows] == [[], ["short"], ["its process ended, or was ended, in this cell"], []]
    assert not Journal(tmp_path / "none").rows
    assert Journal(None).rows == []


def test_the_worst_are_told() -> None:
    low = {"error": 0.02, "own": 0.02, "allowed": 1.1, "own_first": 1.0, "first": 2.0, "built": 0}
    rows = [
        {**replace(CELL, index=n, dtype="bfloat16").to_json(), **low, "of_own": 0.9 + n / 10, "fell": []}
        for n in range(3)
    ]
    rows[2]["fell"] = ["of itself"]
    rows[0]["again_own"] = 1.0
    rows[1] |= {
        "peak": 1 << 30,
        "first_peak": 1 << 29,
        "said": 1 << 30,
        "ratio": 1.0,
        "held": 3 << 29,
        "named": 2 << 30,
    }
    rows.append({**replace(CELL, index=3).to_json(), "skipped": "refused by the model: no", "fell": []})
    lines = [*told(measured(row) for row in rows)]
    text = "\n".join(lines)
    assert lines[0] == "4 cells of seeds 1: 1 fall short"
    assert "  1 the model itself refuses" in lines
    assert "  1 erred more by chance, and not with other inputs" in lines
    first = lines.index("highest errors over the untiled model's:")
    assert lines[first + 1].startswith("   1.100  1.2 taesd decode 64x96 bfloat16")
    assert "   2.00  1.1 taesd" in text  # said over its first peak
    assert "  0.750  1.1 taesd" in text
    assert "   0.25  1.0 taesd" in text
    assert "taesd decode 0.997 (3)" in text
    assert lines[-1] == "FELL SHORT 1.2 taesd decode 64x96 bfloat16: of itself"


FEW = "sdxl,taesd,qwen"
"""Families that take little time."""


def swept_here(script: ModuleType, out: Path, *more: object) -> int:
    found: int = script.main(["--device", "cpu", "--slack", "600", "--out", str(out), *map(str, more)])
    return found


@pytest.mark.slow
def test_a_few_cells(script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Pictures and clips, in two calls; a third has nothing left to do, and tells of all."""
    out = tmp_path / "sweep.jsonl"
    few = ("--families", FEW, "--seed", 11)
    assert swept_here(script, out, *few, "--cells", 2) == 0
    assert swept_here(script, out, *few, "--cells", 4) == 0
    rows = Journal(out).rows
    assert len(rows) == 4
    assert all("error" in row for row in rows), rows
    capsys.readouterr()
    assert swept_here(script, out, "--report") == 0
    assert f"{len(rows)} cells of seeds 11: 0 fall short" in capsys.readouterr().out


def test_a_cell_that_falls_short_is_the_exit_code(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "sweep.jsonl"
    monkeypatch.setattr(Bench, "run", lambda _self, cell: Result(cell, {}, ["of itself"] if cell.index else []))
    assert swept_here(script, out, "--cells", 1) == 0
    assert swept_here(script, out, "--cells", 3) == 1
    assert swept_here(script, out, "--report") == 1
    monkeypatch.setattr(Bench, "run", lambda _self, cell: Result(cell))
    assert swept_here(script, out, "--cells", 3, "--again") == 0
    assert swept_here(script, out, "--report") == 0
    assert swept_here(script, out, "--cells", 5, "--seconds", -1) == 0
    assert "no time left for 2 cells, from 1.3 on" in capsys.readouterr().out

    def lost(_self: Bench, cell: Cell) -> Result:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(Bench, "run", lost)
    assert swept_here(script, out, "--cells", 5) == 1
    assert len(Journal(out).rows) == 4


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_a_hundred_cells(seed: int, script: ModuleType, tmp_path: Path) -> None:
    assert swept_here(script, tmp_path / "sweep.jsonl", "--seed", seed, "--cells", 50, "--seconds", 1800) == 0
