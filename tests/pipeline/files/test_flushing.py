"""Folders that are flushed by many threads at the same time."""

from __future__ import annotations

import os
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest

from tvae.pipeline.files import flushing

pytestmark = pytest.mark.skipif(os.name == "nt", reason="folders cannot be flushed there")


def in_threads(folder: Path, count: int) -> list[OSError | None]:
    found: list[OSError | None] = []

    def one() -> None:
        try:
            flushing.flush_folder(folder)
            found.append(None)
        except OSError as error:
            found.append(error)

    threads = [threading.Thread(target=one) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return found


def test_one_flush_serves_all_who_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times: list[tuple[float, float]] = []

    def slow(_folder: Path) -> None:
        begin = time.monotonic()
        time.sleep(0.05)
        times.append((begin, time.monotonic()))

    monkeypatch.setattr(flushing, "_flush", slow)
    assert in_threads(tmp_path, 30) == [None] * 30
    assert 2 <= len(times) <= 4, "the first comer's, and one for those who came meanwhile"
    assert all(later[0] >= earlier[1] for earlier, later in pairwise(times))
    assert not flushing._next
    assert not flushing._running


def test_a_flush_that_began_before_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on, order = threading.Event(), threading.Event(), list[str]()

    def slow(_folder: Path) -> None:
        order.append("flush")
        begun.set()
        assert go_on.wait(20)

    monkeypatch.setattr(flushing, "_flush", slow)
    first = threading.Thread(target=flushing.flush_folder, args=(tmp_path,))
    first.start()
    assert begun.wait(20)
    second = threading.Thread(target=flushing.flush_folder, args=(tmp_path,))
    second.start()
    go_on.set()
    for thread in (first, second):
        thread.join(20)
    assert order == ["flush", "flush"]


def test_a_failure_is_everybodys(tmp_path: Path) -> None:
    found = in_threads(tmp_path / "gone", 5)
    assert all(isinstance(error, FileNotFoundError) for error in found)
    flushing.flush_folder(tmp_path)
