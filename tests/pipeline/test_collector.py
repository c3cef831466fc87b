"""Python's collector stays away from captures."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from tvae.pipeline.collector import without_collector


@pytest.fixture
def looks() -> Iterator[list[int]]:
    """How often the collector has looked, by generation."""
    seen: list[int] = []

    def look(phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            seen.append(info["generation"])

    gc.collect()
    gc.callbacks.append(look)
    yield seen
    gc.callbacks.remove(look)


def test_it_does_not_look_meanwhile(looks: list[int]) -> None:
    with without_collector():
        with without_collector():
            made = [[n] for n in range(100_000)]
        assert not gc.isenabled()
    assert gc.isenabled()
    del made
    assert len(looks) <= 1


def test_who_does_without_goes_on_so() -> None:
    gc.disable()
    try:
        with without_collector():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
