"""Time on any device, and the ceilings that times are judged by."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

__all__ = [
    "call_seconds",
    "copy_rate",
    "free_memory",
    "is_out_of_memory",
    "matrix_rate",
    "queued_seconds",
    "recorded",
]

_QUEUED_SECONDS = 2e-3
"""Work that is queued between two events: their own cost and the first launch do not count."""

_COPY_BYTES = {"cuda": 1 << 30, "cpu": 1 << 26}
_MATRIX = {"cuda": 8192, "cpu": 768}


def call_seconds(run: Callable[[], Any], device: torch.device) -> float:
    """Seconds of one call by the wall clock, from an idle device until it is idle again."""
    _synchronize(device)
    start = time.perf_counter()
    run()
    _synchronize(device)
    return time.perf_counter() - start


def queued_seconds(run: Callable[[], Any], device: torch.device, *, repeat: int) -> float:
    """Median seconds of one call among many, warm.

    On a GPU calls are queued between two events, so that short kernels are not measured by the pause before them.
    """
    for _ in range(2):
        run()
    once = call_seconds(run, device)
    if device.type != "cuda":
        return statistics.median([once, *(call_seconds(run, device) for _ in range(repeat - 1))])
    calls = min(100, max(1, round(_QUEUED_SECONDS / once)))
    times = []
    with torch.cuda.device(device):  # events are recorded on the current device's stream
        for _ in range(repeat):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            for _ in range(calls):
                run()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end) / 1e3 / calls)
    return statistics.median(times)


def recorded(run: Callable[[], Any], device: torch.device) -> Callable[[], Any] | None:
    """A warm call as the replay of a CUDA graph, in which runs of one shape make it; None where it cannot be one.

    What a host needs to start the call's kernels one by one is no part of it.
    """
    if device.type != "cuda":
        return None
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.device(device), torch.cuda.graph(graph, capture_error_mode="thread_local"):
            kept = run()
    except RuntimeError:
        return None

    def replay() -> Any:
        graph.replay()
        return kept  # its memory is the graph's

    return replay


def copy_rate(device: torch.device, *, repeat: int = 10) -> float:
    """Bytes a second, read plus written, of a large copy on the device."""
    size = _COPY_BYTES.get(device.type, 1 << 28)
    if device.type == "cuda":
        size = min(size, torch.cuda.mem_get_info(device)[0] // 8)
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / queued_seconds(lambda: target.copy_(source), device, repeat=repeat)


def matrix_rate(device: torch.device, dtype: torch.dtype, *, repeat: int = 10) -> float:
    """Operations a second (two per multiply-add) of a large matrix product in this type."""
    size = _MATRIX.get(device.type, 2048)
    if device.type == "cuda" and dtype in (torch.float32, torch.float64):
        size //= 2
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    out = torch.empty_like(a)
    return 2 * size**3 / queued_seconds(lambda: torch.mm(a, b, out=out), device, repeat=repeat)


def free_memory(device: torch.device) -> None:
    """Gives back to the device what nothing refers to any more; a CPU's memory goes back by itself."""
    if device.type == "cuda":
        gc.collect()
        _synchronize(device)
        torch.cuda.empty_cache()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, on any device."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "not enough memory" in str(error)


def _synchronize(device: torch.device) -> None:
    """Waits until the device has done all it was given."""
    backend = getattr(torch, device.type, None)
    if device.type != "cpu" and backend is not None:
        backend.synchronize(device) if device.type == "cuda" else backend.synchronize()
