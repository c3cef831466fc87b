"""Items that runs share: taken once, let go of when they end, few at a time where they are slow."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from tvae.pipeline.files.lock import OutputHeld, one_writer
from tvae.pipeline.jobs import claimed
from tvae.pipeline.jobs.claimed import ClaimedItems
from tvae.pipeline.jobs.events import ItemSkipped
from tvae.pipeline.jobs.outputs import Item
from tvae.pipeline.jobs.supply import PENDING


def items(folder: Path, names: list[str]) -> list[Item]:
    found = []
    for number, name in enumerate(names):
        kinds = frozenset(["video" if name.endswith(".mp4") else "image"])
        found.append(Item(Path(name), number, kinds, folder, name, False, True))  # type: ignore[arg-type]
    return found


def taken(some: Iterator[object]) -> list[int]:
    """Those that are given before there are none to take: one is tried at a time."""
    found, idle = list[int](), 0
    for item in some:
        if isinstance(item, Item):
            found.append(item.index)
            idle = 0
        idle += item is PENDING
        if idle > 60:
            break
    return found


def end(run: ClaimedItems, item: Item) -> None:
    run.ending(lambda _item, _outcome: None)(item, ItemSkipped(item.source, item.index, item.source, "x"))


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claimed, "LOOK_SECONDS", 0.0)


def test_two_runs_have_different_items_and_one_gets_what_the_other_leaves(tmp_path: Path) -> None:
    all_items = items(tmp_path, [f"{n}.png" for n in range(20)])
    first, second = ClaimedItems(all_items), ClaimedItems(all_items)
    mine, others = taken(first), taken(second)
    assert not {*mine} & {*others}
    assert sorted(mine + others) == [*range(20)]
    first.close()  # as its process would that ends
    for number in [*others]:
        end(second, all_items[number])
    for _ in range(20):
        for number in taken(second):
            others.append(number)
            end(second, all_items[number])
    assert {*mine} <= {*others}
    second.close()
    assert not [*tmp_path.iterdir()]


def test_one_item_is_tried_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks has a lock of the run's: on a slow network its other threads would wait for all tries."""
    all_items, tries = items(tmp_path, [f"{n}.png" for n in range(20)]), list[Path]()

    @contextmanager
    def never(path: Path, _patience: float) -> Iterator[None]:
        tries.append(path)
        raise OutputHeld(path)
        yield

    monkeypatch.setattr(claimed, "one_writer", never)
    run = ClaimedItems(all_items)
    for number in range(20):
        assert len(tries) == number
        assert next(run) is PENDING
        begin = time.monotonic()
        run.bell.wait()
        assert time.monotonic() - begin < 0.1, "the next is tried at once"
    assert len({*tries}) == 20


def test_items_of_other_runs_are_looked_at_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claimed, "LOOK_SECONDS", 0.2)
    (item,) = items(tmp_path, ["a.png"])
    with one_writer(tmp_path / "a.png.claim", 0):
        run, looks = ClaimedItems([item]), list[float]()
        monkeypatch.setattr(run, "_take", lambda _item: looks.append(time.monotonic()))
        while len(looks) < 4:
            assert next(run) is PENDING
    assert all(later - sooner > 0.19 for sooner, later in pairwise(looks[1:]))


def test_an_item_is_let_go_of_after_its_end_was_told(tmp_path: Path) -> None:
    """So that the run that has made an output is the one that tells of it, even where telling fails."""
    all_items = items(tmp_path, ["a.png", "b.mp4"])
    first, second = ClaimedItems(all_items), ClaimedItems(all_items)
    assert taken(first) == [0, 1]

    def told(item: Item, _outcome: object) -> None:
        assert taken(second) == []
        if item.index == 0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        first.ending(told)(all_items[0], ValueError())
    assert taken(second) == [0]
    first.ending(lambda _item, _outcome: None)(all_items[1], ValueError())
    assert taken(second) == [1]
    second.close()


def test_a_million_clips_are_looked_through_once(tmp_path: Path) -> None:
    all_items = items(tmp_path, [f"{n}.mp4" for n in range(1000)]) * 100
    run = ClaimedItems(all_items)
    assert taken(run) == [0, 1]
    begin = time.process_time()
    for number in range(2, 302):
        end(run, all_items[number - 2])
        assert next(run) is all_items[number]
        assert next(run) is PENDING
    assert time.process_time() - begin < 1.0
    run.close()


def test_clips_are_left_to_others(tmp_path: Path) -> None:
    all_items = items(tmp_path, ["0.mp4", "1.mp4", "2.mp4", "3.png", "4.mp4"])
    first, second = ClaimedItems(all_items), ClaimedItems(all_items)
    assert taken(first) == [0, 1, 3]
    assert taken(second) == [2, 4]
    end(first, all_items[0])
    for one in (3, 1):
        end(first, all_items[one])
    for one in (2, 4):
        end(second, all_items[one])
    rest = []
    for _ in range(9):
        for number in taken(first):
            rest.append(number)
            end(first, all_items[number])
    assert sorted(rest) == [2, 4]  # which it finds done
    assert [*first] == []


def test_items_that_take_long_are_held_in_small_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    all_items = items(tmp_path, [f"{n}.png" for n in range(400)])
    for quick, slow, held in ((1e9, 1e9, claimed.MOST), (0.0, 0.0, claimed.FEW)):
        monkeypatch.setattr(claimed, "QUICK", quick)
        monkeypatch.setattr(claimed, "SLOW", slow)
        run, open_items = ClaimedItems(all_items), list[int]()
        for _ in range(130):
            open_items += taken(run)
            end(run, all_items[open_items.pop(0)])
        open_items += taken(run)
        assert len(open_items) == held
        run.close()


def test_an_item_that_is_no_use_or_cannot_be_written_is_given(tmp_path: Path) -> None:
    closed = tmp_path / "file"
    closed.write_bytes(b"")
    (item,) = items(closed, ["a.png"])
    assert taken(ClaimedItems([item])) == [0]


def test_the_bell_rings_when_an_item_ends(tmp_path: Path) -> None:
    (item,) = items(tmp_path, ["a.png"])
    run = ClaimedItems([item])
    taken(run)
    threading.Timer(0.01, end, (run, item)).start()
    begin = time.monotonic()
    run.bell.wait()
    assert time.monotonic() - begin < 0.1
    assert [*run] == []
