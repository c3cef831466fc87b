"""What calls take of memory and time: of a CUDA device all that the process holds, of a CPU what is resident."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from card import Card, card_of

__all__ = ["Call", "Meter", "kernels_on_disk", "meter_of"]

_EVERY = 0.004
"""Seconds."""


@dataclass(frozen=True)
class Call:
    """One call. tensors: the most that was alive at once beyond what was there before the first of these calls, its
    memory that recordings keep included. held: the most that the process had of the device, or resident. outside: of
    that, what is not the allocator's. reserved: the most that the allocator had. pools: what recordings keep
    afterwards. begun: held before it, where that is asked of a budget: recordings of other objects may be there, and
    go."""

    result: Any
    seconds: float
    tensors: int
    held: int
    outside: int = 0
    reserved: int = 0
    pools: int = 0
    begun: int = 0


class Meter(Protocol):
    """Bytes and times of calls on a device."""

    least: int
    """What is smaller is not asserted of: other things take as much."""
    drift: int
    """Bytes that a process may grow by while nothing is run."""

    def begin(self) -> None:
        """Gives back what is unused; from here on ``Call.tensors`` counts."""

    def call(self, run: Callable[[], Any]) -> Call:
        """From an idle device until it is idle again."""

    def kept(self) -> int:
        """Of what came since ``begin`` and is still there, recordings left out."""

    def free(self) -> int:
        """Bytes that new tensors can have."""

    def total(self) -> int:
        """Of the device."""


class _Sampler:
    """The most that a function gives while a block runs."""

    def __init__(self, ask: Callable[[], int]) -> None:
        self._ask, self.most = ask, 0

    @contextmanager
    def running(self) -> Iterator[None]:
        over = threading.Event()
        self.most = self._ask()

        def sample() -> None:
            while not over.wait(_EVERY):
                self.most = max(self.most, self._ask())

        thread = threading.Thread(target=sample, name="sweep-memory", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            self.most = max(self.most, self._ask())


def _touch_cublas(device: torch.device) -> None:
    """The library takes its workspace for this stream."""
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.ones(16, 16, dtype=dtype, device=device)
        torch.addmm(x[0], x, x)


class _Cuda:
    least, drift = 256 << 20, 0

    def __init__(self, card: Card) -> None:
        self._card, self._device = card, card.device
        own = self._by_runtime()  # asked first: it makes the context, which the driver counts as ours
        self._others = self._card.used() - own
        self._asks_driver = getattr(card, "_asked", None) is not None
        self._base = self._before = 0

    def begin(self) -> None:
        gc.collect()  # what a cell before left to Python's collector is no part of this one
        self._card.wait()
        self._before = self._without_cublas()
        torch.cuda.empty_cache()
        self._base = torch.cuda.memory_allocated(self._device) + self._idle()

    def call(self, run: Callable[[], Any]) -> Call:
        self._card.wait()
        idle, begun = self._idle(), self._by_runtime()
        torch.cuda.reset_peak_memory_stats(self._device)
        # the runtime is not asked while a call records: of what it takes then, the allocator tells afterwards
        sampler = _Sampler(lambda: self._card.used() - self._others if self._asks_driver else 0)
        with sampler.running():
            start = time.perf_counter()
            result = run()
            self._card.wait()
            seconds = time.perf_counter() - start
        outside = self._by_runtime() - torch.cuda.memory_reserved(self._device)
        reserved = torch.cuda.max_memory_reserved(self._device)
        held = max(sampler.most, outside + reserved)
        most = torch.cuda.max_memory_allocated(self._device) + idle - self._base
        return Call(result, seconds, most, held, outside, reserved, self._pools(), begun)

    def kept(self) -> int:
        return self._without_cublas() - self._before

    def _without_cublas(self) -> int:
        """Bytes of tensors, those of recordings left out. cuBLAS's workspaces, of 32 MiB for each stream, come and go
        with whoever used it last: they are no part of what is compared."""
        self._card.wait()
        torch._C._cuda_clearCublasWorkspaces()
        found = self._eager()
        _touch_cublas(self._device)  # the next call finds this stream's
        return found

    def free(self) -> int:
        self._card.wait()
        torch.cuda.empty_cache()
        return self._card.free()

    def total(self) -> int:
        return torch.cuda.mem_get_info(self._device)[1]

    def _by_runtime(self) -> int:
        free, total = torch.cuda.mem_get_info(self._device)
        return total - free

    def _segments(self) -> list[Any]:
        return [s for s in torch.cuda.memory_snapshot() if s["device"] == self._device.index]

    def _idle(self) -> int:
        """In pools of recordings, and no tensor's: a replay writes there."""
        return sum(s["total_size"] - s["allocated_size"] for s in self._recorded())

    def _pools(self) -> int:
        return sum(s["total_size"] for s in self._recorded())

    def _recorded(self) -> list[Any]:
        return [s for s in self._segments() if tuple(s["segment_pool_id"]) != (0, 0)]

    def _eager(self) -> int:
        """Of tensors outside these pools."""
        return sum(s["allocated_size"] for s in self._segments() if tuple(s["segment_pool_id"]) == (0, 0))


class _Cpu:
    least, drift = 200 << 20, 16 << 20

    def __init__(self) -> None:
        self._base = 0

    def begin(self) -> None:
        self._base = _resident()

    def call(self, run: Callable[[], Any]) -> Call:
        sampler = _Sampler(_resident)
        with sampler.running():
            start = time.perf_counter()
            result = run()
            seconds = time.perf_counter() - start
        return Call(result, seconds, sampler.most - self._base, sampler.most)

    def kept(self) -> int:
        return 0  # freed memory may stay resident

    def free(self) -> int:
        return int(card_of("cpu").free())

    def total(self) -> int:
        return self.free() + _resident()


def meter_of(device: torch.device) -> Meter:
    """For a CUDA device or a CPU."""
    return _Cuda(card_of("cuda")) if device.type == "cuda" else _Cpu()


def kernels_on_disk() -> int:
    """How many built kernels there are: a call that makes more of them has built some."""
    from tvae.kernels.cuda.program import cache_folder

    triton = os.environ.get("TRITON_CACHE_DIR") or Path.home() / ".triton" / "cache"
    found = 0
    for folder in (cache_folder(), Path(triton)):
        try:
            with os.scandir(folder) as entries:
                found += sum(1 for _ in entries)
        except OSError:
            continue
    return found


def _resident() -> int:
    """Bytes, on Linux; 0 where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
