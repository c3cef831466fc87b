"""How much memory a run may use: what the user names, or the preset's share of what is free now."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from tvae.pipeline.engine.run.give_back import give_back
from tvae.pipeline.engine.run.host_memory import available_bytes
from tvae.pipeline.engine.run.pinned_memory import POOL
from tvae.pipeline.errors import PlanError
from tvae.pipeline.memory.allocator_bytes import allocator_bytes
from tvae.pipeline.memory.heap import return_what_is_free

__all__ = [
    "CUDA_LATER",
    "Limits",
    "Overhead",
    "Rows",
    "activation_budget",
    "check_budget",
    "free_bytes",
    "has_room",
    "host_room",
    "outside",
    "overhead",
    "reading_room",
    "recorded_segments",
    "tells_segments",
    "unused_bytes",
]

_CUDA_OWN = 700 << 20
"""Of a CUDA process before any tensor (context, libraries), and room for cuDNN's workspaces."""
_CUDA_ALL_OWN = 900 << 20
"""Of a process with all libraries and kernels there are, as far as was measured."""
_CUDA_MOST_OWN = 1280 << 20
"""What is more than that is another process's."""
CUDA_LATER = 96 << 20
"""Room for kernels that libraries load while a run is under way (75 MiB were measured)."""
_CUDA_WORK = CUDA_LATER + (96 << 20)
"""The same, and room for workspaces, beside what a process is seen to have so far."""
_CUDA_ROOM = 0.04
"""Share of a GPU's budget that stays free for holes between buffers (plans were measured to be right within 5 %)."""
_CUDA_SPARE = 32 << 20
"""What a process may take more of at its next call: pages of 2 and 20 MiB, libraries (26 MiB were measured)."""
_CPU_OWN = 600 << 20
"""Of a process that has torch imported, where the system does not tell."""
_CPU_FIRST = 128 << 20
"""What the first run adds beside its buffers: code that is loaded, oneDNN's copies of weights (measured: 120 MiB)."""
_CPU_SPARE = 16 << 20
"""What a process may hold more of at its next call (up to 3 MiB were measured, 30 where it captures anew)."""
_READ_ANYWAY = 48 << 20
"""Bytes that reading an input may take whatever the budget."""
_HOST_SHARE = 0.8
"""Of the host's free memory that buffers of a GPU may take: pinned memory cannot be swapped."""
_CPU_ROOM = 0.08
"""Share of a CPU's budget that stays free for holes between buffers and workspaces of convolutions."""


Rows = Literal["height", "time"]
_LATENT_FRAMES = 2
"""Of a strip, where nobody says otherwise, unless longer ones take little memory."""


@dataclass(frozen=True)
class Limits:
    """What a run is to keep to.

    strip: height of a strip in latent rows; ``fixed``: that and no other. vram: bytes the process may hold on the
    device, None for ``share`` of what is free. spill: folder for buffers on disk, None for the system's. rows: what a
    clip's strips divide, so that ``strip`` counts latent frames where it is time; None for what serves best. longest:
    what strips may grow to while they take little memory. beside: bytes of tensors that are still to come: a clip and
    its result, of which single steps are planned. wait_for_kernels: no run computes without those that are being built.
    """

    strip: int
    fixed: bool = False
    vram: int | None = None
    share: float = 1.0
    spill: Path | None = None
    rows: Rows | None = None
    longest: int = 0
    beside: int = 0
    wait_for_kernels: bool = True

    def of_frames(self) -> Limits:
        """For strips of time, of which a few frames are as much as many rows."""
        if self.fixed:
            return self
        longest = self.strip if self.vram is None else 0
        return replace(self, strip=min(self.strip, _LATENT_FRAMES), longest=longest)

    def strips(self) -> list[int]:
        """Heights to try, the preferred one first."""
        heights = [self.strip]
        while heights[-1] > 1 and not self.fixed:
            heights.append(heights[-1] // 2)
        return heights


def has_room(device: torch.device, named: int, more: int) -> bool:
    """Are so many bytes still to be had of a budget that was planned for before? Asks no library to give back."""
    if device.type == "cpu":
        if more <= Overhead(_resident(), _CPU_ROOM).left(named):
            return True
        return_what_is_free()  # what a call before has left in the heap
        return more <= Overhead(_resident(), _CPU_ROOM).left(named)
    if device.type != "cuda":
        return True
    return outside(device) + CUDA_LATER + torch.cuda.memory_allocated(device) + more <= named


@dataclass(frozen=True)
class Overhead:
    """What a process takes beside buffers and strips: bytes, and a share of all that it may take.

    spare: bytes by which it may grow until the next call.
    """

    bytes: int
    share: float = 0.0
    spare: int = 0

    def left(self, named: int) -> int:
        """Bytes of a named budget that are left for buffers and strips; negative where the overhead alone is larger."""
        return named - int(self.share * named) - self.bytes

    def named(self, left: int) -> int:
        """The budget to name so that so many bytes are left."""
        return max(1, math.ceil((left + self.bytes) / (1 - self.share)))

    def enough(self, left: int) -> int:
        """The budget to name so that so many bytes are left at the next call, too."""
        return self.named(left) + self.spare


def overhead(device: torch.device, weights: int, inputs: int = 0, *, to_come: int | None = None) -> Overhead:
    """As of now. weights: bytes of the weights; to_come: of those that have no place yet, None where that is not known.
    inputs: bytes of tensors that may be there, and are counted elsewhere."""
    if device.type == "cuda":
        give_back()  # what is left then are tensors, whoever's, what recordings keep, and holes
        held = torch.cuda.memory_reserved(device) - inputs
        held = max(weights, held) if to_come is None else held + _in_pages(to_come)
        return Overhead(max(_CUDA_OWN, outside(device) + _CUDA_WORK) + held, _CUDA_ROOM, _CUDA_SPARE)
    if device.type == "cpu":
        return_what_is_free()  # what a call before has left in the heap
        resident = _resident()
        more = weights if to_come is None or not resident else to_come
        return Overhead((resident or _CPU_OWN) + more + _CPU_FIRST, _CPU_ROOM, _CPU_SPARE)
    return Overhead(weights)


def activation_budget(
    device: torch.device, named: int | None, share: float, taken: Overhead, inputs: int = 0
) -> int | None:
    """Bytes for inputs, buffers and strips; None where nothing is known, less than zero where there is nothing left.

    named: everything the process may hold on the device (on a CPU: resident memory); None takes ``share`` of what is
    free now, and of what its inputs take already. Raises PlanError for more than the device has.
    """
    if named is None:
        free = free_bytes(device)
        return None if free is None else int(share * (free + inputs))
    check_budget(device, named)
    return taken.left(named)


def check_budget(device: torch.device, named: int) -> None:
    """Raises PlanError for more than the device has."""
    total: int | None = None
    if device.type == "cuda":
        total = torch.cuda.mem_get_info(device)[1]
    elif device.type == "cpu":
        available = available_bytes()
        total = None if available is None else available + _resident()
    if total is not None and named > total:
        raise PlanError(f"a budget of {named / 2**30:.2f} GiB is more than {device} has ({total / 2**30:.2f} GiB)")


def free_bytes(device: torch.device) -> int | None:
    """What new tensors can take, where it is known."""
    if device.type == "cuda":
        has = allocator_bytes(device)
        return torch.cuda.mem_get_info(device)[0] + has.reserved - has.allocated - _kept_by_recordings(device)
    return available_bytes() if device.type == "cpu" else None


def unused_bytes(device: torch.device) -> int | None:
    """No more than ``free_bytes``, and told at once: what the allocator has and does not use is left out."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else free_bytes(device)


def tells_segments() -> bool:
    """Does the allocator on GPUs say what it holds? PyTorch's own does. ``cudaMallocAsync``, which ComfyUI sets, does
    not: then nothing is recorded, for what recordings keep could not be counted."""
    backend = getattr(torch._C, "_cuda_getAllocatorBackend", None)  # builds for CPUs have none
    return backend is None or backend() == "native"


def recorded_segments(device: torch.device, pool: tuple[int, int] | None = None) -> list[dict[str, Any]]:
    """The allocator's segments in the pools of CUDA graphs, which nothing else can use; pool: in this one. None of
    them where it does not tell."""
    if not tells_segments():
        return []
    index = torch.cuda.current_device() if device.index is None else device.index
    segments = (s for s in torch.cuda.memory_snapshot(pool) if s["device"] == index)
    return [s for s in segments if tuple(s["segment_pool_id"]) != (0, 0)]


def _kept_by_recordings(device: torch.device) -> int:
    """Bytes in the pools of CUDA graphs that no tensor has."""
    return sum(s["total_size"] - s["allocated_size"] for s in recorded_segments(device))


def _in_pages(tensors: int) -> int:
    """What many tensors, small and large, take of segments that grow by 2 MiB and by 20 MiB."""
    return (-(-tensors // (20 << 20)) * 20 + 2) << 20 if tensors else 0


def outside(device: torch.device) -> int:
    """Bytes of a CUDA device that are this process's and not PyTorch's allocator's: context, libraries, kernels.

    All that the device lacks beside the allocator's, or the most that a process has where others use the device, too.
    """
    free, total = torch.cuda.mem_get_info(device)
    found: int = total - free - torch.cuda.memory_reserved(device)
    return found if found <= _CUDA_MOST_OWN else _CUDA_ALL_OWN


def reading_room(device: torch.device, named: int | None) -> int | None:
    """Bytes of the host's memory that reading an input may take; None where the system does not tell.

    named: a budget of memory. On a CPU it is the process's, and what is read counts against it. Small inputs are read
    in any budget all the same: their plan then says what would do.
    """
    available = available_bytes()
    if named is None or device.type != "cpu":
        return available
    left = max(named - _resident(), _READ_ANYWAY)
    return left if available is None else min(left, available)


def host_room() -> int | None:
    """Bytes that buffers of a GPU may take of the host's memory; None where the system does not tell."""
    available = available_bytes()
    return None if available is None else int(_HOST_SHARE * (available + POOL.free_bytes))


def _resident() -> int:
    """What this process holds now, on Linux; 0 where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
