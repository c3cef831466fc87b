"""What is to be seen of a run: counts, rates and shares that are known beforehand, on terminals of any width."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from tvae.cli.dashboard import Dashboard
from tvae.pipeline.jobs import (
    Event,
    ItemDone,
    ItemFailed,
    ItemSkipped,
    ItemStarted,
    Progress,
    Quality,
    Retried,
    RunDone,
    RunStarted,
)
from tvae.pipeline.jobs.busy import Busy
from tvae.pipeline.jobs.events import ItemVerified

OUT = Path("out")


class Watched:
    """A dashboard, and the time that it believes it to be."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._console = Console(file=io.StringIO(), width=110)
        self.dashboard = Dashboard(self._console, lambda: self.now)

    def show(self, *events: Event, seconds: float = 0.0) -> None:
        """One after the other, so long after one another."""
        for event in events:
            self.now += seconds
            self.dashboard.show(event)

    def lines(self, width: int = 110) -> list[str]:
        """As Rich draws them now."""
        console = Console(file=io.StringIO(), width=width, record=True, soft_wrap=True)
        console.print(self.dashboard)
        return [line.rstrip() for line in console.export_text().splitlines() if line.strip()]


@pytest.fixture
def watched() -> Watched:
    return Watched()


def done(index: int) -> ItemDone:
    return ItemDone(Path(f"{index}.png"), index, OUT, 1, 0.1)


def failed(index: int, error: str) -> ItemFailed:
    return ItemFailed(Path(f"in/{index}.png"), index, error)


def ended(event: type[Event], count: int) -> RunDone:
    return RunDone(count, 0, 0, 0, 1.0)


def test_counts_rate_and_time_left(watched: Watched) -> None:
    watched.show(RunStarted("encode", 100))
    watched.show(done(0), ItemSkipped(Path("1.png"), 1, OUT, "done"), failed(2, "bad"), seconds=2.0)
    watched.show(*map(done, range(3, 10)), seconds=2.0)
    (bar, *_) = watched.lines()
    assert bar.startswith("encode ━")
    assert "10/100 0.5 items/s 0:03:00" in bar  # 90 left at one in two seconds


def test_the_expected_end(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    noon = time.mktime((2026, 11, 26, 12, 0, 0, 0, 0, -1))
    monkeypatch.setattr("tvae.cli.dashboard.time.time", lambda: noon)
    watched.show(RunStarted("encode", 1000))
    watched.show(*map(done, range(11)), seconds=2.0)
    assert "ends about 12:32" in watched.lines()  # 989 left at two seconds each: 32 min 58 s
    watched.show(RunStarted("encode", 100_000))
    watched.show(*map(done, range(11)), seconds=2.0)
    assert "ends about Sat 19:32" in watched.lines()  # 55 h 32 min 58 s
    assert sum("items/s" in line for line in watched.lines()) == 1, "the run before was left, and has no bar any more"
    watched.show(RunStarted("encode", 20))
    watched.show(*map(done, range(11)), seconds=2.0)
    assert not any("ends" in line for line in watched.lines())


def test_devices_of_the_last_seconds(watched: Watched) -> None:
    """The first 100 s, in which nothing was done, do not count."""
    busy = Busy(0)
    busy.told("a", "cuda:0", 2, {"compute": 0.0})
    busy.told("b", "cuda:1", 2, {"compute": 0.0})
    watched.show(RunStarted("encode", 100, load=busy.load))
    watched.lines()
    watched.now += 100
    watched.lines()
    for second in range(1, 21):
        watched.now += 1
        busy.told("a", "cuda:0", 2, {"read": 0.2 * second, "compute": 0.9 * second, "write": 0.0})
        busy.told("b", "cuda:1", 2, {"read": 0.2 * second, "compute": 0.3 * second, "clip": 0.2 * second})
        lines = watched.lines()
    assert "busy: cuda:0 90 %, cuda:1 50 %" in lines
    assert "stages: reading 10 %, computing 70 %, writing 0 %; bottleneck: computing" in lines
    busy.forget("b")
    assert "busy: cuda:0 90 %" in watched.lines()


def test_the_bottleneck_is_named(watched: Watched) -> None:
    busy = Busy(1, "cpu")
    watched.show(RunStarted("encode", 100, load=busy.load))
    watched.lines()
    watched.now += 5
    busy.add("compute", 1.0)
    busy.add("write", 4.9)
    assert "stages: reading 0 %, computing 20 %, writing 98 %; bottleneck: writing" in watched.lines()
    assert "busy: cpu 20 %" in watched.lines()


def test_many_devices_are_one_line(watched: Watched) -> None:
    busy = Busy(0)
    for number in range(40):
        busy.told(number, f"worker {number}", 1, {"compute": 0.0})
    watched.show(RunStarted("encode", 100, load=busy.load))
    watched.lines()
    watched.now += 10
    for number in range(40):
        busy.told(number, f"worker {number}", 1, {"compute": 2.0 if number == 7 else 9.03})
    assert "busy: 40 devices 89 % on average, least worker 7 with 20 %" in watched.lines()


def test_the_last_failures_stay(watched: Watched) -> None:
    watched.show(RunStarted("encode", 10))
    here = Path.cwd() / "in" / "1.png"
    watched.show(failed(0, "in/0.png: first"), failed(1, f"{here}: is\ncut \x1b[2Joff"))
    assert watched.lines()[1:] == ["failed: 2", "  0.png: first", "  1.png: is cut \\x1b[2Joff"]
    watched.show(failed(2, "no room"), failed(3, "[red]odd[/red] :smile:"))
    assert watched.lines()[1:] == [
        "failed: 4, the last 3:",
        "  1.png: is cut \\x1b[2Joff",
        "  2.png: no room",
        "  3.png: [red]odd[/red] :smile:",
    ]
    watched.show(RunDone(6, 0, 4, 0, 1.0), RunStarted("decode", 10))
    assert watched.lines()[0].startswith("decode")
    assert watched.lines()[1] == "failed: 4, the last 3:", "of the whole batch"


def test_clips_have_a_bar_each(watched: Watched) -> None:
    clip = Path("in/clip\x1b.mp4")
    watched.show(RunStarted("encode", 2), ItemStarted(clip, 0, OUT, "video", 90))
    watched.show(*(Progress(clip, 0, n, 90) for n in range(1, 31)), seconds=0.5)
    assert [line for line in watched.lines() if "30/90 2.0 frames/s 0:00:30" in line and "clip\\x1b.mp4" in line]
    watched.show(Retried(clip, 0, "its worker was lost"))
    assert len(watched.lines()) == 1
    watched.show(ItemStarted(clip, 0, OUT, "video", 90), ItemDone(clip, 0, OUT, 90, 1.0))
    assert len(watched.lines()) == 1
    assert "1/2" in watched.lines()[0]


def test_one_item_alone_has_no_lines(watched: Watched) -> None:
    busy = Busy(1, "cpu")
    watched.show(RunStarted("encode", 1, load=busy.load))
    watched.now += 5
    busy.add("compute", 5.0)
    assert watched.lines() == []


def test_a_check_counts_without_knowing_how_many(watched: Watched) -> None:
    watched.show(RunStarted("verify", 0), *(ItemVerified(Path(f"{n}"), n, "fine") for n in range(7)))
    assert "7/?" in watched.lines()[0]
    watched.show(RunDone(7, 0, 0, 0, 1.0, Quality(1.0, None, 1)))
    assert watched.lines() == []


@pytest.mark.parametrize("width", range(20, 131, 5))
def test_no_line_is_longer_than_the_terminal(watched: Watched, width: int, wide: Callable[[int], Event]) -> None:
    busy = Busy(0)
    for number in range(8):
        busy.told(number, f"worker {number} on a machine with a long name", 1, {"compute": 0.0})
    watched.show(RunStarted("roundtrip", 400, load=busy.load))
    watched.lines()
    watched.show(*map(wide, range(6)), *(done(n) for n in range(200)), seconds=3.0)
    for number in range(8):
        busy.told(number, f"worker {number} on a machine with a long name", 1, {"compute": 2.0})
    found = watched.lines(width)
    assert max(map(cell_len, found)) <= width
    assert len(found) == 1 + 1 + 2 + 4, "nothing is wrapped"
    assert found[0].startswith("round")
    assert ("━" in found[0]) == (width >= 64)


@pytest.fixture
def wide() -> Callable[[int], Event]:
    return lambda n: ItemFailed(Path(f"写真{n}.png"), n, "壊れています " * 40)
