"""Where results, complaints and progress go: onto one terminal, or each to its own place."""

from __future__ import annotations

import io
import json
import sys
import threading
import time
from pathlib import Path

import pytest
from terminal import Terminal

from tvae.cli.render import Display
from tvae.pipeline.jobs import Event, ItemDone, ItemFailed, Notice, RunDone, RunStarted
from tvae.pipeline.jobs.busy import Busy

COLUMNS = 90
OUT = Path("out")


class Screen(io.StringIO):
    """That takes itself for a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    """Of a size that is known."""
    for name, value in (("TERM", "xterm"), ("COLUMNS", str(COLUMNS)), ("LINES", "30")):
        monkeypatch.setenv(name, value)
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    return Screen()


def onto(patch: pytest.MonkeyPatch, results: io.StringIO, complaints: io.StringIO) -> None:
    """In the test itself: pytest puts its own in their place before."""
    patch.setattr(sys, "stdout", results)
    patch.setattr(sys, "stderr", complaints)


def stands(screen: io.StringIO) -> list[str]:
    terminal = Terminal(COLUMNS)
    terminal.feed(screen.getvalue())
    return terminal.lines


def some_events(busy: Busy) -> list[Event]:
    return [
        RunStarted("encode", 4, load=busy.load),
        ItemDone(Path("a.png"), 0, OUT / "a", 1, 0.1),
        Notice(Path("b.png"), 1, "is odd"),
        ItemDone(Path("b.png"), 1, OUT / "b", 1, 0.1),
        ItemFailed(Path("c.png"), 2, "is bad"),
    ]


RESULTS = [f"a.png -> {OUT / 'a'}", f"b.png -> {OUT / 'b'}"]
COMPLAINTS = ["tvae: warning: b.png: is odd", "tvae: error: c.png: is bad"]


def shown(display: Display, end: float = 0.0) -> None:
    busy = Busy(1, "cpu")
    with display:
        for event in some_events(busy):
            display.show(event)
        busy.add("compute", 0.5)
        time.sleep(end)
        display.show(RunDone(2, 0, 1, 0, 3.0))


@pytest.mark.long
def test_all_on_one_terminal(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    onto(monkeypatch, screen, screen)
    shown(Display(as_json=False, quiet=False, verbose=False, progress=True), end=2.0)
    found = stands(screen)
    assert found == [RESULTS[0], COMPLAINTS[0], RESULTS[1], COMPLAINTS[1], "2 done, 1 failed in 3.0 s"]
    for word in ("3/4", "busy: cpu ", "stages: reading 0 %", "failed: 1", "  c.png: is bad"):
        assert word in screen.getvalue(), "it was to be seen before"


def test_results_into_a_file(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    onto(monkeypatch, file, screen)
    with Display(as_json=False, quiet=False, verbose=False, progress=True) as display:
        for event in some_events(Busy(1, "cpu")):
            display.show(event)
        assert file.getvalue().splitlines() == RESULTS, "at once"
    assert stands(screen) == COMPLAINTS


def test_json_beside_progress(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    onto(monkeypatch, file, screen)
    shown(Display(as_json=True, quiet=False, verbose=False, progress=True), end=0.5)
    told = [json.loads(line) for line in file.getvalue().splitlines()]
    assert [one["type"] for one in told] == [
        "run_started",
        "item_done",
        "warning",
        "item_done",
        "item_failed",
        "run_done",
    ]
    assert "load" not in told[0]
    assert "3/4" in screen.getvalue()


@pytest.mark.parametrize(("quiet", "progress"), [(True, True), (False, False)])
def test_without_progress(screen: Screen, monkeypatch: pytest.MonkeyPatch, quiet: bool, progress: bool) -> None:
    onto(monkeypatch, screen, screen)
    threads = threading.active_count()
    with Display(as_json=False, quiet=quiet, verbose=False, progress=progress) as display:
        assert threading.active_count() == threads
        for event in some_events(Busy(1, "cpu")):
            display.show(event)
        assert screen.getvalue().splitlines() == (
            [COMPLAINTS[1]] if quiet else [RESULTS[0], COMPLAINTS[0], RESULTS[1], COMPLAINTS[1]]
        )


def test_a_log_has_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    onto(monkeypatch, file, file)
    shown(Display(as_json=False, quiet=False, verbose=False, progress=True))
    assert file.getvalue().splitlines() == [
        RESULTS[0],
        COMPLAINTS[0],
        RESULTS[1],
        COMPLAINTS[1],
        "2 done, 1 failed in 3.0 s",
    ]
