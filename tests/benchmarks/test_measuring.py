"""The measuring scripts, tried on a CPU with tiny models: every row comes, and what fails is told and passed over."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from card import GIB, card_of
from measuring import apart
from measuring.apart import Apart
from measuring.compare import compared, kept
from measuring.heard import heard
from measuring.rows import Row, Rows
from measuring.watch import Watch

TRIED = ("--device", "cpu", "--tiny", "--here")


@pytest.fixture(autouse=True)
def _models(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    monkeypatch.setenv("MEASURING_FOLDER", str(tmp_path_factory.getbasetemp()))
    before = torch.is_grad_enabled()
    torch.set_grad_enabled(False)  # as the scripts' processes have it
    yield
    torch.set_grad_enabled(before)


def run(name: str, *arguments: object, tried: tuple[str, ...] = TRIED) -> list[Row]:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    script = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    found: list[Row] = script.main([*map(str, arguments), *tried])
    return found


def fine(rows: list[Row]) -> list[Row]:
    assert rows
    for row in rows:
        assert "failed" not in row, row
        assert "FAILED" not in str(row.get("note")), row
    return rows


@pytest.mark.slow
def test_budgets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "rows" / "of.jsonl"
    rows = fine(run("measure_budgets", "decode:64@float32,diffusers,0,0.01,least,tiled", "--warm", 1, "--out", out))
    assert [row["way"] for row in rows] == ["float32", "diffusers", "0", "0.01", "least", "tiled"]
    assert rows[1]["error"] > 0
    assert 0.9 < rows[2]["of_own"] < 1.1  # below 1.02 at real sizes
    assert rows[3]["refused"]
    assert rows[3]["least"] > 2**20
    assert rows[5]["of_own"] > 1.1
    about, *kept_rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert about["about"]["device"] == "CPU"
    assert [row["way"] for row in kept_rows] == [row["way"] for row in rows]
    assert "the smallest that works is" in capsys.readouterr().out


@pytest.mark.slow
def test_errors_of_clips() -> None:
    rows = fine(run("measure_clips", "seedvr2-exact"))
    errors = [row for row in rows if "error" in row]
    assert [(row["side"], row["way"]) for row in errors] == [
        *(("decode", "module error"), ("decode", "steps error")),
        *(("encode", "module error"), ("encode", "steps error")),
    ]
    assert all(0 < row["of_own"] < 1.2 for row in errors)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["lengths", "lengths-encode", "wan-17", "hunyuan-largest", "ltx-long", "ltx-long-encode", "seedvr2"]
)
def test_every_row_of_clips(name: str) -> None:
    rows = fine(run("measure_clips", name))
    assert all(row["first"] > 0 for row in rows if "refused" not in str(row.get("note")))


@pytest.mark.slow
def test_speed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = fine(run("measure_speed", "decode512x4", "kernels", "profile-encode", "--repeat", 1, "--without", "compile"))
    whole = [row for row in rows if row["row"] == "decode512x4"]
    assert [row["run"] for row in whole] == ["diffusers", "tvae"]
    assert whole[1]["ms_frame"] == pytest.approx(whole[1]["ms"] / 4)
    assert whole[1]["goal"] == 20
    assert {row["run"] for row in rows} >= {"copy 32", "norm_act native", "empty", "as left"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["decode", "encode", "wan", "hunyuan", "attention", "first-encode", "first-levels"])
def test_every_row_of_speed(name: str) -> None:
    rows = fine(run("measure_speed", name, "--repeat", 1, "--without", "compile,script,triton,cuda"))
    assert ("copy 32" if name == "attention" else "diffusers") in {row["run"] for row in rows}


@pytest.mark.slow
def test_jobs_of_clips(tmp_path: Path) -> None:
    rows = fine(run("measure_clip_jobs", "--frames", 257, "--repeat", 1, "--folder", tmp_path))
    assert [row["row"] for row in rows] == ["sdxl/encode", "sdxl/decode", "wan21/encode", "wan21/decode"]
    assert all(row["start"] > 0 and row["share"] == row["tvae"] / row["engine"] for row in rows)
    for row, most in zip(rows[:2], (110, 65), strict=True):
        assert row["goal"] == min(most, 0.9 * min(row["engine"], row["film"]))
    assert rows[2]["goal"] == 0.9 * rows[2]["engine"]
    assert {path.name for path in tmp_path.iterdir()} <= {"measured-films", "measured-compiled"}, "the rest is gone"


def test_a_row_that_fails_is_a_row_and_those_without_time_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    rows = Rows({"name": "5", "value": "6.2f"}, None, 1e6)

    def bad() -> Iterator[Row]:
        yield {"value": 1.0}
        raise ValueError("first line\nlast line\n")

    rows.measure({"name": "a"}, bad)
    rows.measure({"name": "b"}, lambda: [{"value": 2.5}])
    rows._until = -1
    rows.measure({"name": "c"}, lambda: [{"value": 3.5}])
    assert [row.get("value") for row in rows.end()] == [1.0, None, 2.5]
    told = capsys.readouterr().out.splitlines()
    assert told[2].endswith("FAILED ValueError: last line")
    assert told[3].startswith("b        2.50")
    assert told[4] == "no time left for: c"


@pytest.mark.slow
def test_a_task_in_a_process_of_its_own() -> None:
    """Its answer comes back, and so does the last line of what went wrong."""
    runner = Apart(card_of("cpu"))
    request = {"config": "sdxl", "tiny": True, "side": "encode", "size": (16, 16, None), "dtype": "float32"}
    request |= {"device": "cpu", "preset": "cpu", "way": "diffusers", "runs": 1, "save": None}
    found = runner.run("whole", request, seconds=120)
    assert found.answer["first"] > 0
    assert found.answer["seconds"] > 0
    with pytest.raises(RuntimeError, match=r"UsageError: 17x16: this VAE needs multiples of 4$"):
        runner.run("whole", {**request, "size": (17, 16, None)}, seconds=120)


@pytest.mark.slow
def test_a_cap_that_is_too_low_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    card = card_of("cpu")
    held: list[int] = []
    monkeypatch.setattr(card, "free", lambda: 10 * GIB)
    monkeypatch.setattr(card, "hold", lambda size: held.append(size) or size)
    answers: Any = iter([RuntimeError("torch.OutOfMemoryError: CUDA out of memory."), {"first": 1.0}])

    def answer(*_: Any) -> Any:
        one = next(answers)
        if isinstance(one, Exception):
            raise one
        return one

    monkeypatch.setattr(apart.Apart, "_answer", answer)
    found = Apart(card).run("whole", {}, seconds=1, cap=3 * GIB)
    assert held == [7 * GIB]
    assert found.answer == {"first": 1.0, "note": "OUT OF MEMORY in 3.00 GiB; this is without the cap"}
    assert not found.capped


@pytest.mark.slow
def test_a_copied_process_that_cannot_have_a_device_is_started_afresh(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def answered(_self: Any, method: str, *_: Any) -> dict[str, Any]:
        asked.append(method)
        if method == "forkserver":
            raise RuntimeError("RuntimeError: Cannot re-initialize CUDA in forked subprocess.")
        return {}

    monkeypatch.setattr(apart.Apart, "_answered", answered)
    runner = Apart(card_of("cpu"))
    runner._method = "forkserver"
    for _ in range(2):
        runner.run("whole", {}, seconds=1)
    assert asked == ["forkserver", "spawn", "spawn"]


def test_results_are_compared_part_by_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("measuring.compare._PART", 7)
    x = torch.randn(3, 11)
    kept(x, tmp_path / "a")
    kept(x + 0.5, tmp_path / "b")
    assert compared(tmp_path / "a", tmp_path / "a") == (0.0, True)
    error, same = compared(tmp_path / "b", tmp_path / "a")
    assert error == pytest.approx(0.5 * 33**0.5 / float(x.double().norm()))
    assert not same


def test_what_the_engine_says_is_in_the_row(capsys: pytest.CaptureFixture[str]) -> None:
    import logging

    with heard() as said:
        for rows in (64, 64, 32):
            logging.getLogger("tvae").info("going on with %d rows", rows)
    Rows({"name": "4"}, None, 1e6).add({"name": "a", "heard": said})
    assert said == ["2x going on with 64 rows", "1x going on with 32 rows"]
    assert capsys.readouterr().out.splitlines()[-1].endswith("2x going on with 64 rows  1x going on with 32 rows")


def test_the_most_that_is_taken_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    card = card_of("cpu")
    taken = [5]
    monkeypatch.setattr(card, "used", lambda: taken[0])
    with Watch(card) as watch:
        for bytes_ in (9, 30, 6):
            taken[0] = bytes_
            time.sleep(0.05)
    assert watch.device == 25


@pytest.mark.slow
def test_checksum(capsys: pytest.CaptureFixture[str]) -> None:
    rows = fine(run("measure_checksum", tried=TRIED[:3]))
    assert [row["tensors"] for row in rows] == [88, 88]
    assert rows[1]["MB"] == 2 * rows[0]["MB"]
    assert len(capsys.readouterr().out.splitlines()) == 4


@pytest.mark.slow
def test_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", "anywhere")  # so that what the script sets is gone afterwards
    monkeypatch.delenv("PYTHONPYCACHEPREFIX")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    out = tmp_path / "rows.jsonl"
    chosen = ("--rows", "sizes,calls,tiny", "--tiny", "--device", "cpu", "--folder", tmp_path, "--out", out)
    rows = run("measure_jobs", *chosen, tried=())
    assert [row["row"] for row in rows] == ["sizes", "calls", "tiny"]
    assert fine(rows[1:])
    assert len(out.read_text().splitlines()) == 4
    assert not [*tmp_path.glob("measured-jobs-*")]
    assert [*(tmp_path / "measured-compiled").rglob("overlap.*.pyc")]


@pytest.mark.slow
def test_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    rows = run("measure_sizes", tried=("--device", "cpu", "--tiny"))
    assert {"mean", "warm", "first", "planning", "host", "queued"} == {*rows}
    assert capsys.readouterr().out.count("x") >= 10


def test_gates() -> None:
    rows = fine(run("measure_gates", tried=("--tiny",)))
    assert [row["row"] for row in rows] == ["encode photos", "decode photos", "encode clip", "decode clip"]
    assert all(row["items"] and 0 < row["sums"] < 100 and 0 < row["gates"] < 100 for row in rows)
