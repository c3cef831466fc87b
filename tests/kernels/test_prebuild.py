"""Builds that a rehearsal asks for: by threads, once each; who needs one waits for it."""

from __future__ import annotations

import gc
import threading
import time

import pytest

from tvae.kernels.prebuild import asked, beside, rehearsal, under_way, wait_for, wait_for_all


def test_each_is_built_once() -> None:
    built: list[tuple[int, str]] = []

    def build(n: int) -> None:
        time.sleep(0.02)
        built.append((n, threading.current_thread().name))

    assert asked() is None
    with rehearsal() as builds:
        assert asked() is builds
        for n in (1, 2, 3, 1, 2, 3):
            builds.want(n, lambda n=n: build(n))  # type: ignore[misc]
    assert asked() is None
    wait_for_all()
    assert not under_way()
    assert sorted(n for n, _ in built) == [1, 2, 3]
    assert all(name.startswith("tvae-build") for _, name in built)
    assert len(builds) == 3


def test_what_cannot_be_built_is_left_to_the_run() -> None:
    done: list[int] = []

    def fail() -> None:
        raise RuntimeError("no compiler")

    with rehearsal() as builds:
        builds.want("bad", fail)
        builds.want("good", lambda: done.append(1))
    wait_for("bad")
    wait_for("good")
    assert done == [1]


@pytest.mark.parametrize("enabled", [True, False])
def test_the_last_build_leaves_nothing_young_to_pythons_collector(enabled: bool) -> None:
    """A call that came soon after the builds waited until what they leave had been looked through."""
    left: list[list[int]] = []
    try:
        if not enabled:
            gc.disable()
        with rehearsal() as builds:
            for n in range(3):
                builds.want(n, lambda n=n: (time.sleep(0.05 * n), left.append([n])))  # type: ignore[misc]
        wait_for_all()
        assert sorted(left) == [[0], [1], [2]]
        young = {id(one) for one in (*gc.get_objects(0), *gc.get_objects(1))}
        assert young.isdisjoint(map(id, left)) == enabled
    finally:
        gc.enable()


def test_who_needs_one_waits_for_that_alone() -> None:
    go, done = threading.Event(), threading.Event()
    with rehearsal() as builds:
        builds.want("short", done.set)
        builds.want("long", lambda: go.wait(10))
    wait_for("nobody's")
    wait_for("short")
    assert done.is_set()
    assert under_way()
    waiting = threading.Thread(target=wait_for, args=["long"])
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    go.set()
    waiting.join(10)
    assert not waiting.is_alive()
    wait_for_all()
    assert not under_way()


def test_other_threads_launch_as_ever() -> None:
    seen: list[object] = []
    with rehearsal():
        other = threading.Thread(target=lambda: seen.append(asked()))
        other.start()
        other.join()
    assert seen == [None]


def test_a_rehearsal_that_breaks_off_builds_no_more() -> None:
    started, go = threading.Event(), threading.Event()
    done: list[int] = []

    def first() -> None:
        started.set()
        go.wait(10)

    def broken() -> None:
        with rehearsal() as builds:
            for n in range(50):
                builds.want(n, first)
            builds.want("last", lambda: done.append(1))
            started.wait(10)
            raise KeyError

    with pytest.raises(KeyError):
        broken()
    go.set()
    assert asked() is None
    time.sleep(0.05)
    assert not done


def test_a_rehearsal_ends_when_it_asks_for_nothing_new() -> None:
    built, asked_for = [], 0
    with rehearsal() as builds:
        for n in (*range(60), *range(60), *range(100, 160), *[0] * 149, 200, *[0] * 1000):
            builds.want(n, lambda n=n: built.append(n))  # type: ignore[misc]
            asked_for += 1
    assert asked() is None
    wait_for_all()
    assert sorted(built) == [*range(60), *range(100, 160), 200]
    assert asked_for == 60 + 60 + 60 + 149 + 1 + 149


def test_what_is_done_beside_is_waited_for() -> None:
    go, done = threading.Event(), []

    def fail() -> None:
        raise RuntimeError("no GPU")

    beside(fail)
    beside(lambda: done.append(go.wait(10)))
    assert under_way()
    go.set()
    wait_for_all()
    assert done == [True]
    assert not under_way()


def test_what_holds_no_lock_of_pythons_is_not_queued_behind_what_does() -> None:
    go, programs = threading.Event(), threading.Event()
    with rehearsal() as builds:
        for n in range(40):
            builds.want(n, lambda: go.wait(10))
        builds.want("program", programs.set, alone=True)
        builds.want("program", lambda: pytest.fail("asked for twice"), alone=True)
    try:
        assert programs.wait(5)
        assert len(builds) == 41
    finally:
        go.set()
        wait_for_all()


def test_all_are_waited_for_so_long() -> None:
    go = threading.Event()
    assert wait_for_all(0)
    beside(lambda: go.wait(10))
    begin = time.monotonic()
    assert not wait_for_all(0.05)
    assert 0.04 < time.monotonic() - begin < 5
    go.set()
    assert wait_for_all(10)
    assert wait_for_all()
