"""Runs that keep a device busy for longer than the host are not recorded. On a card: tests/gpu/test_recordings.py."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tvae.pipeline.session.pace import LONG, LONG_STEP, Pace


class Device:
    """In the place of a GPU: what its events tell, in milliseconds, and whether the last of them is past."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.took, self.host, self.past, self.recorded = 0.0, 0.0, True, 0
        monkeypatch.setattr(torch.cuda, "Event", self.event)
        monkeypatch.setattr(time, "perf_counter", self.now)
        self.clock = 0.0

    def now(self) -> float:
        return self.clock

    def event(self, enable_timing: bool) -> Any:
        assert enable_timing
        return SimpleNamespace(record=self.record, query=lambda: self.past, elapsed_time=lambda _: self.took)

    def record(self) -> None:
        self.recorded += 1

    def run(self, pace: Pace, host: float) -> None:
        with pace.watched():
            self.clock += host / 1e3


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    return Device(monkeypatch)


@pytest.mark.parametrize(
    ("took", "host", "bound"),
    [
        (LONG, 10.0, True),
        (LONG - 0.1, 10.0, False),  # short: the moment before the first operation counts
        (100.0, 75.0, True),
        (100.0, 76.0, False),  # the host has as much to do
    ],
)
def test_a_long_run_that_the_host_starts_sooner_is_the_devices(
    device: Device, took: float, host: float, bound: bool
) -> None:
    pace = Pace(starts_more=False)
    assert not pace.device_bound, "nothing is known yet"
    device.took = took
    device.run(pace, host)
    assert device.recorded == 2
    assert pace.device_bound is bound


def test_steps_and_shared_runs_have_more_to_start(device: Device) -> None:
    pace = Pace(starts_more=True)
    for took, bound in ((LONG, False), (LONG_STEP, True)):
        device.took = took
        device.run(pace, 20.0)
        assert pace.device_bound is bound


def test_a_run_that_has_not_ended_tells_nothing(device: Device) -> None:
    pace = Pace(starts_more=False)
    device.took, device.past = 100.0, False
    device.run(pace, 1.0)
    assert not pace.device_bound
    device.past = True
    assert pace.device_bound


def test_a_run_that_failed_is_not_counted(device: Device) -> None:
    pace = Pace(starts_more=False)
    device.took = 100.0
    with pytest.raises(RuntimeError), pace.watched():
        raise RuntimeError
    assert not pace.device_bound
