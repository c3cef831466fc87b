"""Peak memory of a call on a CUDA device, what CUDA graphs keep for themselves included."""

from __future__ import annotations

import torch

__all__ = ["Peak"]


class Peak:
    """Bytes above what was held when this was made. On other devices every answer is None: nobody counts there."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._base = self._held() if device.type == "cuda" else 0

    def restart(self) -> None:
        """From here on."""
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)

    def allocated(self) -> int | None:
        """The most that was allocated at once since ``restart``."""
        if self._device.type != "cuda":
            return None
        return torch.cuda.max_memory_allocated(self._device) - self._base

    def footprint(self) -> int | None:
        """The same, and what the pools of CUDA graphs hold while no tensor lives in them: replays write there."""
        if self._device.type != "cuda":
            return None
        return torch.cuda.max_memory_allocated(self._device) + self._idle_in_pools() - self._base

    def _held(self) -> int:
        return torch.cuda.memory_allocated(self._device) + self._idle_in_pools()

    def _idle_in_pools(self) -> int:
        segments = (s for s in torch.cuda.memory_snapshot() if s["device"] == self._device.index)
        private = (s for s in segments if tuple(s.get("segment_pool_id", (0, 0))) != (0, 0))
        return sum(s["total_size"] - s["allocated_size"] for s in private)
