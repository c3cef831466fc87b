"""One reader at a time looks up what is done already, unless files answer slowly; and everybody hears of all."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tvae.pipeline.jobs import ItemDone, ItemSkipped, existing, overlap, turns
from tvae.pipeline.jobs.context import Context

Run = Callable[..., Any]
MANY, READERS = 100, 8


@pytest.fixture
def done(run: Run, picture: Run, tmp_path: Path) -> Path:
    """A folder of images whose latents are in ``out``."""
    for number in range(MANY):
        source = picture(f"in/{number:03d}.png", 16, 16, seed=number)
    assert run("encode", source.parent, output=tmp_path / "out")[0].done == MANY
    return source.parent


@pytest.fixture
def readers(monkeypatch: pytest.MonkeyPatch) -> None:
    before = overlap._Overlap.__init__

    def begin(self: Any, items: Any, operation: Any, context: Context, *more: Any) -> None:
        context.threads = READERS
        before(self, items, operation, context, *more)

    monkeypatch.setattr(overlap._Overlap, "__init__", begin)


class LookedUp:
    """Who looks up whether latents serve, how many at once, and for how long."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, nap: float = 0.0) -> None:
        self.threads = list[int]()
        self.most = self._inside = 0
        self._lock, before = threading.Lock(), existing.latents.latents_done

        def slow(*args: Any) -> bool:
            with self._lock:
                self._inside += 1
                self.most = max(self.most, self._inside)
                self.threads.append(threading.get_ident())
            time.sleep(nap)
            with self._lock:
                self._inside -= 1
            return before(*args)

        monkeypatch.setattr(existing.latents, "latents_done", slow)


@pytest.mark.usefixtures("readers")
def test_one_at_a_time(run: Run, done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for seconds in ("PATIENCE", "SLOW"):
        monkeypatch.setattr(turns, seconds, 60.0)
    seen = LookedUp(monkeypatch)
    ended, events = run("encode", done, output=tmp_path / "out")
    assert ended.skipped == MANY
    assert sorted(event.index for event in events if isinstance(event, ItemSkipped)) == [*range(MANY)]
    assert seen.most == 1
    changes = sum(one != other for one, other in zip(seen.threads, seen.threads[1:], strict=False))
    assert changes < MANY // 4, "the one who has the turn keeps it"


@pytest.mark.usefixtures("readers")
def test_nobody_waits_for_slow_files(run: Run, done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = LookedUp(monkeypatch, nap=0.05)
    assert run("encode", done, output=tmp_path / "out")[0].skipped == MANY
    assert seen.most > READERS // 2


def test_others_wait_as_long_as_files_answer_quickly() -> None:
    """And wait again when they do, and while it is found out."""
    of_all, waits = turns.Turns(), list[bool]()
    for period in (turns.SLOW / 2, turns.SLOW * 2, turns.SLOW * 2, turns.SLOW / 2):
        for times in (turns.TRIED, turns.KEPT):
            waits.append(of_all._patience > 0)
            for _ in range(times):
                of_all.took(period)
    assert waits == [True, True, True, False, True, False, True, True]


def test_one_slow_answer_says_nothing() -> None:
    of_all = turns.Turns()
    for number in range(turns.TRIED):
        of_all.took(1.0 if number == 3 else turns.SLOW / 2)
    assert of_all.wait()
    assert of_all._patience == turns.PATIENCE


def test_who_has_no_turn_times_nothing() -> None:
    """Beside others a look-up takes as long as they let it."""
    of_all = turns.Turns()
    of_all._patience = 0.0
    mine, other = turns.Turn(of_all), turns.Turn(of_all)
    last: Any = None
    for turn in (mine, other):
        turn.take()
    other.skips(last, last)
    assert not of_all._times
    mine.skips(last, last)
    assert len(of_all._times) == 1
    mine.give()
    assert of_all.wait()


@pytest.mark.usefixtures("readers")
def test_who_reads_has_handed_the_turn_on(
    run: Run, done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading takes as long as all others need to be looked up, and to be heard of."""
    for seconds in ("PATIENCE", "SLOW"):
        monkeypatch.setattr(turns, seconds, 60.0)
    (tmp_path / "out" / "000.png.safetensors").unlink()
    before, heard = overlap.looked_up, list[int]()

    def reading(operation: Any, item: Any, context: Context, hold: Callable[[int], None]) -> Any:
        if item.index:
            return before(operation, item, context, hold)
        hold(1)
        while len(heard) < MANY - 1:
            time.sleep(0.001)
        return before(operation, item, context, hold)

    monkeypatch.setattr(overlap, "looked_up", reading)
    tell = overlap._Overlap._tell

    def told(self: Any) -> None:
        end = self._end
        self._end = lambda item, outcome: (heard.append(item.index), end(item, outcome))
        tell(self)
        self._end = end

    monkeypatch.setattr(overlap._Overlap, "_tell", told)
    ended, events = run("encode", done, output=tmp_path / "out")
    assert (ended.done, ended.skipped) == (1, MANY - 1)
    assert [event.index for event in events if isinstance(event, ItemDone)] == [0]
