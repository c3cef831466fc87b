"""Clocks and ceilings."""

from __future__ import annotations

import time

import pytest
import torch

from tvae.pipeline.bench import timing
from tvae.pipeline.bench.memory import Peak

CPU = torch.device("cpu")


def test_seconds_of_a_call() -> None:
    assert 0.02 <= timing.call_seconds(lambda: time.sleep(0.02), CPU) < 20


def test_the_median_of_warm_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """One slow call, the first or another, does not show."""
    now, pauses = [0.0], iter([100, 100, 100, 2, 2, 100, 2, 2])

    def run() -> None:
        now[0] += next(pauses)

    with monkeypatch.context() as patched:
        patched.setattr(time, "perf_counter", lambda: now[0])
        assert timing.queued_seconds(run, CPU, repeat=6) == 2


def test_ceilings_are_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(timing._COPY_BYTES, "cpu", 1 << 16)
    monkeypatch.setitem(timing._MATRIX, "cpu", 64)
    monkeypatch.setattr(timing, "queued_seconds", lambda run, device, repeat: (run(), 0.5)[1])
    assert timing.copy_rate(CPU) == 2 * (1 << 16) / 0.5
    assert timing.matrix_rate(CPU, torch.float32) == 2 * 64**3 / 0.5


def test_allocations_that_fail() -> None:
    assert timing.is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert timing.is_out_of_memory(RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate"))
    assert not timing.is_out_of_memory(RuntimeError("CUDA error: an illegal memory access was encountered"))


def test_nobody_counts_memory_on_a_cpu() -> None:
    peak = Peak(CPU)
    peak.restart()
    assert (peak.allocated(), peak.footprint()) == (None, None)
