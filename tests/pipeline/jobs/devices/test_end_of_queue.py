"""At the end of the queue, devices that read, compute and write at once have enough for all three."""

from __future__ import annotations

import heapq
from pathlib import Path

import pytest

from tvae.pipeline.jobs.devices.shares import Shares
from tvae.pipeline.jobs.outputs import Item


def rate(pictures: int, devices: int, each: float, latency: float) -> float:
    """Pictures a second of devices that compute one after the other, each of which takes ``latency`` seconds from its
    file to its result, whatever else is under way."""
    at, photo = [0.0], frozenset({"image"})
    items = [Item(Path(f"{n}"), n, photo, Path(), f"{n}", False, True) for n in range(pictures)]  # type: ignore[arg-type]
    shares = Shares(items, devices, lambda: at[0])
    free, clock = [0.0] * devices, list[tuple[float, int, int]]()
    while shares.left:
        taking = [*range(devices)]
        while taking:
            for device in [*taking]:
                item = shares.next_for(device)
                if item is None:
                    taking.remove(device)
                else:
                    free[device] = max(free[device], at[0] + latency - each) + each
                    heapq.heappush(clock, (free[device], item.index, device))
        at[0], index, device = heapq.heappop(clock)
        shares.ended(device, index)
    return pictures / at[0]


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_devices_are_busy_to_the_end_of_the_queue(devices: int) -> None:
    """Photos of 1024x1024 on as many GPUs, which take 9 ms each there, and 80 ms in all."""
    each, latency = 0.009, 0.08
    pictures = 128 * devices
    least = latency + pictures / devices * each
    assert rate(pictures, devices, each, latency) > 0.93 * pictures / least
    assert rate(2 * pictures, devices, each, latency) > 0.95 * 2 * pictures / (2 * least - latency)
