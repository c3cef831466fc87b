"""Prepared runs of a session, by what they are for, and the memory that recorded ones keep.

A recorded run (a CUDA graph) has its buffers for as long as it lives. The recordings of one session share one pool:
they run one after the other and their results are copied out, so that the pool is as large as the largest needs beside
the results of all. The pools of all sessions together keep to a share of the device; the recordings that have gone
unused for longest go first.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tvae.pipeline.engine.run.cuda_graph import Recording, RecordingPool
from tvae.pipeline.engine.run.give_back import give_back
from tvae.pipeline.engine.run.storage import RowSource
from tvae.pipeline.memory.allocator import allocator_share, without_holes
from tvae.pipeline.memory.limits import recorded_segments
from tvae.pipeline.models.calls import Call
from tvae.pipeline.session.ready import Ready
from tvae.pipeline.session.recorded_clip import RecordedClip
from tvae.pipeline.session.recorded_step import RecordedStep
from tvae.pipeline.session.recorder import Recorded
from tvae.pipeline.session.run_inputs import Rows
from tvae.pipeline.session.runner import Runner
from tvae.pipeline.session.task import Task

__all__ = ["KeptRuns", "drop_recordings", "run_key"]

RECORDED_SHARE = 0.25
"""Of a device's memory that recordings may keep."""
RECORDED_MOST, RECORDED_ROOM = 1.08, 72 << 20
"""Times the plan, and bytes, that a recording may take: while one is made, no memory is given back and joined anew, so
that values of many sizes leave holes; inputs are copied in, results copied out; cuBLAS takes a workspace of 32 MiB on
Hopper, and so does cuBLASLt. Where that is more, what was planned is the run's without a recording."""
_KEPT = 256
"""Prepared runs of a session. What they hold beside recordings are Python's objects."""

_lock = threading.RLock()
_everywhere: weakref.WeakSet[KeptRuns] = weakref.WeakSet()
_clock = count()


class _Taken(NamedTuple):
    """Bytes of a recording: work, which others of its session share, and its own inputs and outputs. used: when."""

    work: int
    own: int
    used: int


class KeptRuns:
    """See the module's docstring. ahead: see ``Recorder``."""

    def __init__(self, device: torch.device) -> None:
        self.ahead = False
        self._device = device
        self._ready: OrderedDict[Any, Ready] = OrderedDict()
        self._clips: OrderedDict[Any, RecordedClip] = OrderedDict()
        self._recorded: OrderedDict[Recorded, _Taken] = OrderedDict()
        self._pool: RecordingPool | None = None
        with _lock:
            _everywhere.add(self)

    def recorded(self, key: Any) -> Ready | None:
        """The run of this key, where there is one that is recorded."""
        found = self.prepared(key)
        return None if found is None or not found.runner.recorded else found

    def clip(self, key: Any) -> RecordedClip:
        """What counts the clips of this key, and has their recording."""
        with _lock:
            found = self._clips.setdefault(key, RecordedClip())
            self._clips.move_to_end(key)
            while len(self._clips) > _KEPT:
                self._let_go(self._clips.popitem(last=False)[1])
        return found

    def prepared(self, key: Any) -> Ready | None:
        """The run of this key, where there is one."""
        with _lock:
            found = self._ready.get(key)
            if found is not None:
                self._ready.move_to_end(key)
        return found

    def runner(self, key: Any) -> Runner | None:
        """What executes the run of this key, where it is prepared."""
        found = self.prepared(key)
        return None if found is None else found.runner

    def get(self, key: Any, make: Callable[[], Ready], serves: Callable[[Ready], bool]) -> Ready:
        """The run of this key, made where there is none that serves."""
        found = self.prepared(key)
        if found is not None and serves(found):
            return found
        return self.put(key, make())

    def put(self, key: Any, ready: Ready) -> Ready:
        """Keep a run, in the place of the one that has gone unused for longest where there are too many."""
        with _lock:
            before = self._ready.get(key)
            self._let_go(None if before is None else before.runner)
            self._ready[key] = ready
            while len(self._ready) > _KEPT:
                self._let_go(self._ready.popitem(last=False)[1].runner)
        return ready

    def clear(self) -> None:
        """Let go of all."""
        with _lock:
            self._ready.clear()
            self._clips.clear()
            self._recorded.clear()
            self._pool = None

    def record(
        self,
        owner: Recorded,
        run: Callable[[Sequence[Tensor]], list[Tensor]],
        inputs: Sequence[Tensor],
        size: int,
        carried: int,
        kept: Sequence[Tensor] = (),
    ) -> Recording:
        """A recorded run of about so many bytes, ``carried`` of which are inputs and outputs. kept: further inputs, see
        ``Recording``; those that the first replay is given, and those that the run leaves, are there as well. Raises
        RuntimeError where it cannot be recorded."""
        free, total = torch.cuda.mem_get_info(self._device)
        keeps = sum(t.nbytes for t in kept)
        most, share = RECORDED_MOST * (size + 2 * keeps) + RECORDED_ROOM, RECORDED_SHARE * total
        if size + carried > most:
            raise RuntimeError(f"it would take {size + carried >> 20} MiB, and {size >> 20} were planned")
        if size + keeps > share:
            raise RuntimeError("it would keep more memory than recordings may")
        taken = _Taken(max(0, size - carried), carried + keeps, next(_clock))
        with _lock:
            while _kept_with(self, taken) > share:
                if not _drop_oldest(self._device):
                    raise RuntimeError("it would keep more memory than recordings may")
            pool = self._pool = self._pool or RecordingPool(self._device)
        if free < size:
            give_back()  # what is not in use can be had, but not while a run is recorded
        before, failure = self._bytes_of(pool), ""
        recording = None
        with without_holes(), self._at_most(most):
            try:
                recording = Recording(run, inputs, pool, kept)
            except RuntimeError as error:
                failure = str(error)  # the error holds what the recording has taken
        if recording is not None:
            grown = self._bytes_of(pool) - before + recording.copied_bytes
            if grown <= most:
                with _lock:
                    self._pool, self._recorded[owner] = pool, taken
                return recording
            failure = f"it would take {grown >> 20} MiB, and {size >> 20} were planned"
        del recording, pool
        drop_recordings(self._device)
        self._pool = None
        give_back()
        raise RuntimeError(failure)

    def _at_most(self, more: float) -> AbstractContextManager[Any]:
        """For the length of a block the allocator leaves half of what would be free beside so many bytes. A convolution
        that meets a size or a layout for the first time in a recording takes whatever workspace it likes, and has taken
        all of a card. The limit is the process's, so that less would be refused to other threads, too."""
        free, total = torch.cuda.mem_get_info(self._device)
        may = torch.cuda.memory_reserved(self._device) + more + max(0.0, free - more) / 2
        return allocator_share(self._device).borrowed(may / total) if may < total else nullcontext()

    def used(self, owner: Recorded) -> None:
        """Its recording is wanted again."""
        with _lock:
            if owner in self._recorded:
                self._recorded[owner] = self._recorded[owner]._replace(used=next(_clock))
                self._recorded.move_to_end(owner)

    def step_taking(self, caches: Sequence[Rows]) -> RecordedStep | None:
        """The recorded step that takes such caches; None where there is none."""
        with _lock:
            steps = [ready.runner.step for ready in reversed(self._ready.values())]
        return next((step for step in steps if step is not None and step.takes_caches == list(caches)), None)

    def kept(self, more: _Taken | None = None) -> int:
        """Bytes that the recordings take, with one more. With the lock held."""
        all_ = [*self._recorded.values(), *([] if more is None else [more])]
        return max((one.work for one in all_), default=0) + sum(one.own for one in all_)

    def _bytes_of(self, pool: RecordingPool) -> int:
        """Of the device, that the pool has."""
        return sum(s["total_size"] for s in recorded_segments(self._device, pool.id))

    def oldest(self, device: torch.device) -> int | None:
        """When the recording that has gone unused for longest was used; None where there is none on this device."""
        first = next(iter(self._recorded.values()), None)
        return None if first is None or device != self._device else first.used

    def drop_oldest(self) -> None:
        """Let go of that. With the lock held."""
        self._drop(next(iter(self._recorded)))

    def drop_recorded(self, device: torch.device) -> bool:
        """Let go of this session's recordings on a device; were there any? With the lock held."""
        owners = [*self._recorded] if device == self._device else []
        for owner in owners:
            self._drop(owner)
        return bool(owners)

    def _let_go(self, owner: Recorded | None) -> None:
        if owner is not None and owner in self._recorded:
            self._drop(owner)

    def _drop(self, owner: Recorded) -> None:
        del self._recorded[owner]
        owner.drop_recording()
        if not self._recorded:
            self._pool = None  # its memory is free with the last


def run_key(
    task: Task, inputs: Sequence[Tensor | RowSource], call: Call, dims: Mapping[int, int], beside: int = 0
) -> tuple[Any, ...]:
    """What a run is for. dims: of the results that go by rows, by their number, the dimension of those rows. beside:
    bytes to come that it was planned with."""
    return (task, *((tuple(x.shape), isinstance(x, Tensor)) for x in inputs), *dims.items(), call, beside)


def _kept_with(runs: KeptRuns, more: _Taken) -> int:
    """Bytes that the recordings on a device would take with one more of a session."""
    return sum(one.kept(more if one is runs else None) for one in _everywhere if one._device == runs._device)


def _drop_oldest(device: torch.device) -> bool:
    """Let go of the recording that has gone unused for longest, of whatever session; was there any?"""
    oldest = min(((at, runs) for runs in _everywhere if (at := runs.oldest(device)) is not None), default=None)
    if oldest is not None:
        oldest[1].drop_oldest()
    return oldest is not None


def drop_recordings(device: torch.device) -> bool:
    """Let go of every session's recordings on a device, so that their memory can be had; were there any?"""
    with _lock:
        # of every session, not only of the first that has any
        return sum(runs.drop_recorded(device) for runs in _everywhere) > 0
