"""What measurements ask of a device: a CUDA card, or a CPU in its place where only the script is tried."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch

__all__ = ["GIB", "Card", "card_of", "host_memory", "seconds_of"]

GIB = 1 << 30


class Card(Protocol):
    """Bytes and times of a device. Peaks count from ``restart`` on."""

    device: torch.device
    name: str

    def wait(self) -> None:
        """Until the device has done all it was given."""

    def restart(self) -> None:
        """Give back what is not in use, and count peaks from here."""

    def tensors(self) -> int:
        """Bytes of this process's tensors now."""

    def most_tensors(self) -> int:
        """The most since ``restart``."""

    def most_reserved(self) -> int:
        """The most this process had of the device since ``restart``, as it sees it: context and libraries included."""

    def retries(self) -> int:
        """How often, so far, the allocator found no place and gave back what was unused: each waits for the device."""

    def used(self) -> int:
        """Bytes of the device that all processes hold now."""

    def free(self) -> int:
        """Bytes of the device that anybody can have."""

    def settle(self) -> None:
        """Until the memory of a process that has ended is back."""

    def hold(self, size: int) -> Any:
        """Takes so much memory away from everybody else, for as long as the result lives."""


class _Cuda:
    def __init__(self) -> None:
        self.device = torch.device("cuda", torch.cuda.current_device())
        self.name = torch.cuda.get_device_name(self.device)
        self._asked = _nvml(str(getattr(torch.cuda.get_device_properties(self.device), "uuid", "")))

    def wait(self) -> None:
        torch.cuda.synchronize(self.device)

    def restart(self) -> None:
        gc.collect()
        self.wait()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)

    def tensors(self) -> int:
        return torch.cuda.memory_allocated(self.device)

    def most_tensors(self) -> int:
        return torch.cuda.max_memory_allocated(self.device)

    def most_reserved(self) -> int:
        return torch.cuda.max_memory_reserved(self.device)

    def retries(self) -> int:
        return int(torch.cuda.memory_stats(self.device).get("num_alloc_retries", 0))

    def used(self) -> int:
        if self._asked is not None:
            return self._asked()
        free, total = torch.cuda.mem_get_info(self.device)
        return total - free

    def free(self) -> int:
        return torch.cuda.mem_get_info(self.device)[0]

    def settle(self) -> None:
        for _ in range(50):
            before = self.used()
            time.sleep(0.1)
            if self.used() == before:
                return

    def hold(self, size: int) -> Any:
        """Plain allocations of a GiB each, so that a card in pieces has room for them."""
        sizes = [GIB] * (size // GIB) + [size % GIB]
        return [torch.empty(n, dtype=torch.uint8, device=self.device) for n in sizes if n]


class _Cpu:
    """Counts nothing of tensors; of the device, the system's memory in use."""

    def __init__(self) -> None:
        self.device, self.name = torch.device("cpu"), "CPU"

    def wait(self) -> None:
        pass

    def restart(self) -> None:
        gc.collect()

    def tensors(self) -> int:
        return 0

    def most_tensors(self) -> int:
        return 0

    def most_reserved(self) -> int:
        return 0

    def retries(self) -> int:
        return 0

    def used(self) -> int:
        return host_memory()[1]

    def free(self) -> int:
        total, used = host_memory()
        return total - used

    def settle(self) -> None:
        pass

    def hold(self, size: int) -> Any:
        return size


def card_of(name: str) -> Card:
    """``cuda`` or ``cpu``."""
    return _Cuda() if name == "cuda" else _Cpu()


def host_memory() -> tuple[int, int]:
    """Bytes of the host's memory, and those in use; zeros where the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0, 0
    facts = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}
    return facts["MemTotal"], facts["MemTotal"] - facts["MemAvailable"]


def seconds_of(card: Card, run: Callable[[], object]) -> float:
    """Of one call, from an idle device until it is idle again."""
    card.wait()
    start = time.perf_counter()
    run()
    card.wait()
    return time.perf_counter() - start


def _nvml(uuid: str) -> Callable[[], int] | None:
    """The driver's own count, which takes no context; None where it cannot be asked."""
    try:
        import pynvml

        pynvml.nvmlInit()
        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}".encode())
        except Exception:
            handle = pynvml.nvmlDeviceGetHandleByIndex(torch.cuda.current_device())
        pynvml.nvmlDeviceGetMemoryInfo(handle)
    except Exception:
        return None
    return lambda: int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
