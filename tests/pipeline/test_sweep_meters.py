"""How a sweep counts the memory of calls: of a card that is played here, and of this process."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from sweeping import meters
from sweeping.meters import kernels_on_disk, meter_of

from tvae.pipeline.memory.heap import return_what_is_free

MIB = 1 << 20
BESIDE = 700 * MIB
"""Of context and libraries."""
CUBLAS = 32 * MIB
"""A workspace."""


class Played:
    """A card and its allocator. pool: bytes of a recording's memory, which no tensor has between its calls."""

    device = torch.device("cuda", 0)

    def __init__(self) -> None:
        self.eager = self.pool = self.peak = self.cublas = 0

    def take(self, size: int) -> None:
        """Or give back."""
        self.eager += size
        self.peak = max(self.peak, self.eager)

    def record(self, size: int) -> None:
        """A graph, whose tensors are there while it is recorded."""
        self.pool += size
        self.peak = max(self.peak, self.eager + size)

    def wait(self) -> None:
        """All is done already."""

    def free(self) -> int:
        return (80 << 30) - self.used()

    def used(self) -> int:
        return BESIDE + self.eager + self.pool

    def touch_cublas(self) -> None:
        self.take(CUBLAS)
        self.cublas += CUBLAS

    def clear_cublas(self) -> None:
        self.take(-self.cublas)
        self.cublas = 0

    def restarted(self, _device: Any) -> None:
        self.peak = self.eager

    def segments(self) -> list[dict[str, Any]]:
        eager = {"total_size": self.eager + MIB, "allocated_size": self.eager, "segment_pool_id": (0, 0)}
        pool = {"total_size": self.pool, "allocated_size": 0, "segment_pool_id": (0, 1)}
        return [{"device": 0, **eager}, {"device": 0, **pool}, {**pool, "device": 1, "total_size": 1 << 40}]


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Played:
    played = Played()
    for name, answer in {
        "memory_allocated": lambda _: played.eager,
        "max_memory_allocated": lambda _: played.peak,
        "memory_reserved": lambda _: played.eager + played.pool,
        "max_memory_reserved": lambda _: played.peak + played.pool,
        "reset_peak_memory_stats": played.restarted,
        "empty_cache": lambda: None,
        "mem_get_info": lambda _: (played.free(), 80 << 30),
        "memory_snapshot": played.segments,
    }.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", played.clear_cublas, raising=False)
    monkeypatch.setattr(meters, "_touch_cublas", lambda _: played.touch_cublas())
    monkeypatch.setattr(meters, "card_of", lambda _: played)
    return played


def test_tensors_and_recordings_of_a_call(card: Played) -> None:
    """Weights and what others recorded do not count, and are held all the same."""
    card.take(300 * MIB)
    card.pool = 40 * MIB
    meter = meter_of(card.device)
    meter.begin()

    def eager() -> str:
        card.take(100 * MIB)
        card.take(-80 * MIB)
        return "done"

    first = meter.call(eager)
    assert (first.result, first.tensors, meter.kept()) == ("done", 100 * MIB, 20 * MIB)
    assert first.held == BESIDE + CUBLAS + 440 * MIB
    recorded = meter.call(lambda: card.record(70 * MIB))
    assert recorded.tensors == 90 * MIB
    replayed = meter.call(lambda: None)
    assert replayed.tensors == 90 * MIB, "a replay writes to what no tensor has"
    assert meter.kept() == 20 * MIB
    assert meter.total() == 80 << 30
    meter.begin()
    assert meter.call(lambda: None).tensors == 0


def test_workspaces_of_cublas_are_no_part_of_it(card: Played) -> None:
    """Those of other streams go when a run is recorded: what has gone was never of this cell."""
    card.touch_cublas()
    card.touch_cublas()
    meter = meter_of(card.device)
    meter.begin()

    def recorded() -> None:
        card.take(100 * MIB)
        card.clear_cublas()
        card.take(-90 * MIB)

    assert meter.call(recorded).tensors == 100 * MIB
    assert meter.kept() == 10 * MIB


def test_what_is_taken_beside_the_allocator_is_held(card: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    """A workspace that comes and goes within a call is seen from outside alone. What others had before is theirs."""
    card._asked = True  # type: ignore[attr-defined]
    extra = [0]
    monkeypatch.setattr(card, "used", lambda: BESIDE + card.eager + 512 * MIB + extra[0])
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: ((80 << 30) - BESIDE - card.eager, 80 << 30))
    meter = meter_of(card.device)
    meter.begin()

    def workspace() -> None:
        extra[0] = 256 * MIB
        time.sleep(0.1)
        extra[0] = 0

    assert meter.call(workspace).held == BESIDE + CUBLAS + 256 * MIB


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is asked of the system in its own way")
def test_resident_memory_of_a_call() -> None:
    meter = meter_of(torch.device("cpu"))
    return_what_is_free()  # a block in pages that are resident already would be none
    meter.begin()

    def run() -> int:
        block = torch.ones(64 * MIB, dtype=torch.uint8)
        time.sleep(0.1)
        return len(block)

    call = meter.call(run)
    assert 60 * MIB < call.tensors < 160 * MIB
    assert call.held > call.tensors
    assert 0.1 < call.seconds < 60


def test_kernels_that_are_built_are_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    before = kernels_on_disk()
    for folder in (tmp_path / "triton", tmp_path / "tvae" / "kernels"):
        folder.mkdir(parents=True)
        (folder / "one").touch()
    assert kernels_on_disk() == before + (2 if sys.platform == "linux" else 1)
