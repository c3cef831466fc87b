"""The circular buffer: what is fetched ahead, what is kept behind, and what happens when either fails."""

from __future__ import annotations

import errno
import os
import weakref
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_models import TwoNorms, built, graph_of, image, planned
from torch import Tensor

from tvae.pipeline.engine.plan.schedule import LEAVING, PREFETCH, STAGES, Schedule, movable, schedule
from tvae.pipeline.engine.run.execute import execute
from tvae.pipeline.engine.run.host_storage import OnHost
from tvae.pipeline.engine.run.ring import Ring
from tvae.pipeline.errors import PlanError

HEIGHT = 3


@dataclass
class Logged:
    """A boundary that does nothing but remember, shared by all boundaries of a ring."""

    log: list[tuple[str, int]] = field(default_factory=list)
    bytes: int = 0

    def fetch(self, lo: int, hi: int) -> Any:
        self.log.append(("fetch", lo // HEIGHT))
        return _Logged(self.log, "arrived", lo // HEIGHT, torch.full((1,), float(lo)))

    def keep(self, lo: int, hi: int, rows: Tensor) -> Any:
        self.log.append(("keep", lo // HEIGHT))
        return _Logged(self.log, "kept", lo // HEIGHT, None)

    def close(self) -> None:
        self.log.append(("close", 0))


@dataclass
class _Logged:
    log: list[tuple[str, int]]
    what: str
    strip: int
    value: Tensor | None

    def result(self) -> Tensor | None:
        self.log.append((self.what, self.strip))
        return self.value


def run(strips: int, stages: int, prefetch: int) -> list[tuple[str, int]]:
    """What a segment does that reads boundary 1 and writes boundary 2."""
    log = Logged()
    ring = Ring({1: log, 2: log}, [{1: (HEIGHT * n, HEIGHT * (n + 1))} for n in range(strips)], stages, prefetch)
    for n in range(strips):
        values = ring.take()
        assert values[1].item() == HEIGHT * n
        log.log.append(("compute", n))
        ring.keep(2, HEIGHT * n, HEIGHT * (n + 1), values[1])
    ring.drain()
    return log.log


@given(strips=st.integers(1, 9), stages=st.integers(1, 6), prefetch=st.integers(0, 5))
def test_no_more_strips_have_memory_than_there_are_stages(strips: int, stages: int, prefetch: int) -> None:
    if prefetch >= stages:
        return
    fetched, kept = set[int](), set[int]()  # strips whose rows are on their way in or there; on their way out
    computed = -1
    for what, n in run(strips, stages, prefetch):
        if what == "fetch":
            assert n == max(fetched, default=computed) + 1 or not fetched
            fetched.add(n)
            assert len(fetched) <= prefetch + 1
        elif what == "arrived":
            assert n in fetched, "waited for what was not asked for"
        elif what == "compute":
            assert n == computed + 1
            computed = n
            ahead = {m for m in fetched if m > n}
            assert ahead == set(range(n + 1, min(n + 1 + prefetch, strips)))  # exactly so far ahead
        elif what == "keep":
            kept.add(n)
            fetched.discard(n)
        else:
            kept.discard(n)
        assert len(fetched | kept) <= stages
    assert computed == strips - 1
    assert not fetched | kept


@given(values=st.lists(st.integers(1, 5), min_size=1, max_size=6))
def test_few_values_of_a_strip_leave_at_the_same_time(values: list[int]) -> None:
    log, on_their_way = Logged(), set[int]()
    ring = Ring({2: log}, [{} for _ in values], STAGES, PREFETCH)
    for strip, count in enumerate(values):
        ring.take()
        for n in range(count):
            ring.keep(2, HEIGHT * (10 * strip + n), HEIGHT * (10 * strip + n + 1), torch.zeros(1))
    ring.drain()
    for what, n in log.log:
        (on_their_way.add if what == "keep" else on_their_way.discard)(n)
        assert len(on_their_way) <= (STAGES - PREFETCH) * LEAVING
        assert len({m for m in on_their_way if m // 10 == n // 10}) <= LEAVING
    assert not on_their_way
    assert sorted(n for what, n in log.log if what == "kept") == [n for what, n in log.log if what == "keep"]


def test_what_was_fetched_for_strips_that_never_come_is_waited_for() -> None:
    """Their memory goes to others: rows that are still on their way would be written over theirs."""
    log = Logged()
    ring = Ring({1: log}, [{1: (HEIGHT * n, HEIGHT * (n + 1))} for n in range(4)], STAGES, PREFETCH)
    ring.take()
    ring.drain()
    assert {n for what, n in log.log if what == "fetch"} == {n for what, n in log.log if what == "arrived"} == {0, 1}


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no memory"), RuntimeError("broken")])
def test_it_is_waited_for_where_a_strip_fails(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    x, fetch = image(32, 24), OnHost.fetch
    plan = planned(TwoNorms, x, 4)
    plan = replace(plan, places=dict.fromkeys(movable(plan), "host"))
    on_their_way: list[int] = []

    class Watched:
        def __init__(self, rows: Any) -> None:
            self.rows = rows
            on_their_way.append(id(self))

        def result(self) -> Any:
            on_their_way.remove(id(self))
            return self.rows.result()

    monkeypatch.setattr(OnHost, "fetch", lambda *args: Watched(fetch(*args)))
    for at in range(1, 40, 3):
        left = [at]

        def fails(left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] == 0:
                raise error

        with suppress(RuntimeError):
            execute(plan, [x], dict(built(TwoNorms).named_parameters()), before_strip=fails)
        assert not on_their_way
        if left[0] > 0:  # it has fewer strips
            return


def test_strips_come_in_order_and_everything_is_stored_in_the_end() -> None:
    log = run(5, STAGES, PREFETCH)
    for what in ("fetch", "arrived", "compute", "keep", "kept"):
        assert [n for w, n in log if w == what] == list(range(5))
    assert log[:2] == [("fetch", 0), ("fetch", 1)]  # the second is on its way before the first is computed
    assert log.index(("kept", 0)) > log.index(("compute", 1))  # the first is stored behind the second
    assert log.index(("kept", 0)) < log.index(("compute", 2))


@pytest.mark.parametrize(("stages", "prefetch"), [(0, 0), (1, 1), (3, 3), (3, -1), (-1, -2), (2, 5)])
def test_what_is_no_ring_is_refused(stages: int, prefetch: int) -> None:
    with pytest.raises(PlanError, match=f"{stages} stages cannot fetch {prefetch}"):
        Ring({}, [], stages, prefetch)


@pytest.mark.parametrize(("stages", "prefetch"), [(1, 0), (2, 1), (9, 0), (9, 8)])
def test_the_smallest_and_the_widest_rings(stages: int, prefetch: int) -> None:
    assert [n for what, n in run(3, stages, prefetch) if what == "compute"] == [0, 1, 2]


def test_rows_that_are_stored_are_held_by_whoever_stores_them() -> None:
    """A strip's rows may be a small part of a large tensor, which would live on with them."""
    log = Logged()
    ring = Ring({2: log}, [{}], STAGES, PREFETCH)
    ring.take()
    rows = torch.zeros(3)
    gone = weakref.ref(rows)
    ring.keep(2, 0, HEIGHT, rows)
    del rows
    assert gone() is None


class Failing(Logged):
    """One of its transfers fails, in the background."""

    def __init__(self, what: str, strip: int) -> None:
        super().__init__()
        self.what, self.strip = what, strip

    def _future(self, what: str, lo: int) -> Future[Any]:
        future = Future[Any]()
        if (what, lo // HEIGHT) == (self.what, self.strip):
            future.set_exception(OSError(errno.EIO, "the cable was pulled"))
        else:
            future.set_result(torch.zeros(1))
        return future

    def fetch(self, lo: int, hi: int) -> Any:
        return self._future("fetch", lo)

    def keep(self, lo: int, hi: int, rows: Tensor) -> Any:
        return self._future("keep", lo)


@pytest.mark.parametrize("what", ["fetch", "keep"])
@pytest.mark.parametrize("strip", [0, 1, 4])
def test_no_error_in_the_background_is_lost(what: str, strip: int) -> None:
    """That of the last strip's rows shows when the ring is drained."""
    failing = Failing(what, strip)
    ring = Ring({1: failing}, [{1: (HEIGHT * n, HEIGHT * (n + 1))} for n in range(5)], STAGES, PREFETCH)
    done = list[int]()

    def strips() -> None:
        for n in range(5):
            ring.take()
            ring.keep(1, HEIGHT * n, HEIGHT * (n + 1), torch.zeros(1))
            done.append(n)
        ring.drain()

    with pytest.raises(OSError, match="cable"):
        strips()
    assert len(done) <= strip + 1 + STAGES - PREFETCH


def spilled() -> tuple[Schedule, Tensor, dict[str, Tensor]]:
    """A model with every buffer that can go on disk."""
    x = image(24)
    plan = planned(TwoNorms, x, 2)
    plan = schedule(plan.program, 2, dict.fromkeys(movable(plan), "disk"))
    return plan, x, dict(built(TwoNorms).named_parameters()) | graph_of(TwoNorms).constants


@pytest.mark.skipif(not hasattr(os, "pwrite"), reason="what is broken on purpose is not used there")
@pytest.mark.parametrize("call", ["pwrite", "preadv"])
@pytest.mark.parametrize("good", [0, 5])
def test_a_disk_that_fails_ends_the_run_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, good: int
) -> None:
    import threading

    plan, x, weights = spilled()
    threads, working, calls = threading.active_count(), getattr(os, call), [0]

    def failing(*args: Any) -> Any:
        calls[0] += 1
        if calls[0] > good:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return working(*args)

    monkeypatch.setattr(os, call, failing)
    files = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").is_dir() else 0
    with pytest.raises(PlanError, match="Input/output error; name another folder"):
        execute(plan, [x], weights, spill=tmp_path)
    assert threading.active_count() == threads
    assert not files or len(os.listdir("/proc/self/fd")) == files
    assert list(tmp_path.iterdir()) == []
