"""Prepared runs of a session, by what they are for, and the memory that recorded ones keep.

A recorded run (a CUDA graph) has its buffers for as long as it lives. The recordings of one session share one pool:
they run one after the other and their results are copied out, so that the pool is as large as the largest needs, not as
large as all of them. The pools of all sessions together keep to a share of the device.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tvae.pipeline.engine.run.cuda_graph import Recording, RecordingPool
from tvae.pipeline.memory.allocator import without_holes
from tvae.pipeline.memory.limits import recorded_segments
from tvae.pipeline.session.prepared import Ready

__all__ = ["KeptRuns", "drop_recordings"]

RECORDED_SHARE = 0.25
"""Of a device's memory that recordings may keep."""
RECORDED_MOST, RECORDED_ROOM = 1.08, 32 << 20
"""Times the plan, and bytes, that a recording may take: while one is made, no memory is given back and joined anew, so
that values of many sizes leave holes; inputs are copied in, results copied out. Where that is more, what was planned is
the run's without a recording."""
_KEPT = 64
"""Prepared runs of a session. What they hold beside recordings are Python's objects."""

_lock = threading.Lock()
_everywhere: weakref.WeakSet[KeptRuns] = weakref.WeakSet()


class KeptRuns:
    """See the module's docstring."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._ready: OrderedDict[Any, Ready] = OrderedDict()
        self._pool: RecordingPool | None = None
        with _lock:
            _everywhere.add(self)

    def get(self, key: Any, make: Callable[[], Ready], serves: Callable[[Ready], bool]) -> Ready:
        """The run of this key, made where there is none that serves."""
        with _lock:
            found = self._ready.get(key)
            if found is not None:
                self._ready.move_to_end(key)
        if found is not None and serves(found):
            return found
        return self.put(key, make())

    def put(self, key: Any, ready: Ready) -> Ready:
        """Keep a run, in the place of the one that has gone unused for longest where there are too many."""
        with _lock:
            self._ready[key] = ready
            while len(self._ready) > _KEPT:
                self._ready.popitem(last=False)
        return ready

    def clear(self) -> None:
        """Let go of all."""
        with _lock:
            self._ready.clear()
            self._pool = None

    def record(
        self, run: Callable[[Sequence[Tensor]], list[Tensor]], inputs: Sequence[Tensor], size: int, carried: int
    ) -> Recording:
        """A recorded run of about so many bytes, ``carried`` of which are inputs and outputs. Raises RuntimeError where
        it cannot be recorded."""
        most, total = RECORDED_MOST * size + RECORDED_ROOM, torch.cuda.mem_get_info(self._device)[1]
        if size + carried > most:
            raise RuntimeError(f"it would take {size + carried >> 20} MiB, and {size >> 20} were planned")
        if size > RECORDED_SHARE * total:
            raise RuntimeError("it would keep more memory than recordings may")
        if self._kept() + size > RECORDED_SHARE * total:
            drop_recordings(self._device)
        if self._pool is None:
            self._pool = RecordingPool(self._device)
        before = self._kept()
        with without_holes():
            recording = Recording(run, inputs, self._pool)
        taken = self._kept() - before + recording.copied_bytes
        if taken > most:
            del recording
            drop_recordings(self._device)
            self._pool = None
            torch.cuda.empty_cache()
            raise RuntimeError(f"it would take {taken >> 20} MiB, and {size >> 20} were planned")
        return recording

    def _kept(self) -> int:
        """Bytes in the pools of recordings, of all sessions."""
        return sum(s["total_size"] for s in recorded_segments(self._device))

    def drop_recorded(self, device: torch.device) -> bool:
        """Let go of this session's recordings on a device; were there any? With the lock held."""
        if device != self._device:
            return False
        recorded = [key for key, ready in self._ready.items() if ready.runner.recorded]
        for key in recorded:
            del self._ready[key]
        if recorded:
            self._pool = None
        return bool(recorded)


def drop_recordings(device: torch.device) -> bool:
    """Let go of every session's recordings on a device, so that their memory can be had; were there any?"""
    with _lock:
        # of every session, not only of the first that has any
        return sum(runs.drop_recorded(device) for runs in _everywhere) > 0
