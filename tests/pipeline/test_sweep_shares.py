"""Sweeps that have one card together: what each is told of the memory, on a card that is played."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import card
import pytest
import torch
from sweeping.shared_card import take_share

GIB = 1 << 30


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Fractions that the allocator is set to, on a card of 80 GiB of which this process holds 3."""
    found: list[float] = []
    mine = SimpleNamespace(pid=os.getpid(), usedGpuMemory=3 * GIB)
    other = SimpleNamespace(pid=-1, usedGpuMemory=40 * GIB)
    nvml: dict[str, Any] = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByUUID": lambda uuid: uuid,
        "nvmlDeviceGetComputeRunningProcesses": lambda _: [other, mine],
    }
    monkeypatch.setitem(__import__("sys").modules, "pynvml", SimpleNamespace(**nvml))
    for name, stand_in in {
        "synchronize": lambda: None,
        "current_device": lambda: 0,
        "get_device_properties": lambda _: SimpleNamespace(uuid="one"),
        "mem_get_info": lambda _: (37 * GIB, 80 * GIB),
        "set_per_process_memory_fraction": lambda fraction, _: found.append(fraction),
        "get_per_process_memory_fraction": lambda _: found[-1],
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(card, "_nvml", card._nvml)
    return found


def test_each_sees_its_share_and_what_it_holds_itself(limits: list[float]) -> None:
    take_share(4)
    assert torch.cuda.mem_get_info(0) == (17 * GIB, 20 * GIB)
    assert card._nvml("one")() == 3 * GIB  # type: ignore[misc]
    torch.cuda.set_per_process_memory_fraction(0.5, 0)
    assert limits == [0.25, 0.125]
    assert torch.cuda.get_per_process_memory_fraction(0) == 0.5
