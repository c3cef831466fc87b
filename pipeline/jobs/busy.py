"""How much of a run's time each of its stages is at work, and which of them the others wait for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TypeVar

__all__ = ["BUSY", "CLIP", "CLIP_READ", "CLIP_WRITE", "Busy", "Load", "bottleneck", "limiting", "listed"]

T = TypeVar("T")
STAGES = ("read", "compute", "write")
CLIP, CLIP_READ, CLIP_WRITE = "clip", "clip read", "clip write"
"""Computing, reading and writing of clips. A process computes one at a time, which one thread reads and one writes."""
_OF_CLIPS = {"read": CLIP_READ, "compute": CLIP, "write": CLIP_WRITE}
BUSY = 0.7
"""Share of the time from which on a stage holds the others up."""
_DOING = {"read": "reading", "compute": "computing", "write": "writing"}


@dataclass(frozen=True)
class Load:
    """Seconds of work so far. devices: that each has computed, by its name; stages: of all threads and devices on
    pictures, by stage; threads: that read, and as many that write; clips: as stages, on clips."""

    devices: Mapping[str, float]
    stages: Mapping[str, float]
    threads: int
    clips: Mapping[str, float]

    def busy_since(self, before: Load, seconds: float) -> dict[str, float]:
        """Share of the seconds between two looks that each device was at work; 0 to 1."""
        return {name: _share(spent - before.devices.get(name, 0.0), seconds) for name, spent in self.devices.items()}

    def stages_since(self, before: Load, seconds: float) -> dict[str, float]:
        """The same of each stage, on average over what does it: of pictures or of clips, whichever is more."""
        one_each = seconds * max(1, len(self.devices))
        pictures, clips = (_more(now, then) for now, then in ((self.stages, before.stages), (self.clips, before.clips)))
        several = seconds * max(1, self.threads)
        found = {stage: max(_share(pictures[stage], several), _share(clips[stage], one_each)) for stage in STAGES}
        return found | {"compute": _share(pictures["compute"] + clips["compute"], one_each)}


def _more(now: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    return {stage: now[stage] - before[stage] for stage in STAGES}


class Busy:
    """Seconds of work by stage. ``threads`` read, and as many write, and ``device`` computes, if this process does.
    Other processes tell theirs."""

    def __init__(self, threads: int, device: str | None = None) -> None:
        self._threads, self._device = threads, device
        self._seconds = dict.fromkeys((*STAGES, *_OF_CLIPS.values()), 0.0)
        self._others: dict[object, tuple[str, int, dict[str, float]]] = {}
        self._lock = threading.Lock()

    def add(self, stage: str, seconds: float) -> None:
        """So much more work of a stage; negative for what was no work."""
        with self._lock:
            self._seconds[stage] += seconds

    @contextmanager
    def at(self, stage: str) -> Iterator[None]:
        """A thread is at this stage."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.add(stage, time.perf_counter() - begin)

    @contextmanager
    def off(self, stage: str) -> Iterator[None]:
        """The same thread waits, or does something else, meanwhile."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.add(stage, begin - time.perf_counter())

    def during(self, stage: str, values: Iterable[T]) -> Iterator[T]:
        """The values; to give each is work of a stage."""
        return _each(values, lambda: self.at(stage))

    def without(self, stage: str, values: Iterable[T]) -> Iterator[T]:
        """The values, within a time that counts as work of a stage; to wait for each is none."""
        return _each(values, lambda: self.off(stage))

    def by(self, stage: str, work: Callable[[T], None]) -> Callable[[T], None]:
        """The same function; what it does is work of a stage."""

        def done(value: T) -> None:
            with self.at(stage):
                work(value)

        return done

    @property
    def seconds(self) -> dict[str, float]:
        """Of this process so far."""
        with self._lock:
            return dict(self._seconds)

    @property
    def device(self) -> str | None:
        """What this process computes on."""
        return self._device

    @property
    def threads(self) -> int:
        """That read, and as many that write, of all processes."""
        with self._lock:
            return self._threads + sum(threads for _, threads, _ in self._others.values())

    def told(self, process: object, device: str, threads: int, seconds: dict[str, float]) -> None:
        """How long another process's device, and the threads that read and write for it, were at work so far."""
        with self._lock:
            self._others[process] = device, threads, seconds

    def forget(self, process: object) -> None:
        """It is lost, and what it did may be done again."""
        with self._lock:
            self._others.pop(process, None)

    def load(self) -> Load:
        """As it is now; may be asked by any thread."""
        with self._lock:
            others = [*self._others.values()]
            own = dict(self._seconds)
        threads, devices = self._threads, {} if self._device is None else {self._device: own["compute"] + own[CLIP]}
        stages = {stage: own[stage] for stage in STAGES}
        clips = {stage: own[name] for stage, name in _OF_CLIPS.items()}
        for name, more, seconds in others:
            threads += more
            devices[name] = devices.get(name, 0.0) + seconds.get("compute", 0.0) + seconds.get(CLIP, 0.0)
            for stage in STAGES:
                stages[stage] += seconds.get(stage, 0.0)
                clips[stage] += seconds.get(_OF_CLIPS[stage], 0.0)
        return Load(devices, stages, threads, clips)

    def shares(self, seconds: float) -> dict[str, float]:
        """Share of a run of so long that each device, and each thread of the others on average, was at work; 0 to 1."""
        now = self.load()
        nothing = dict.fromkeys(STAGES, 0.0)
        before = Load({}, nothing, 0, nothing)
        return {stage: round(share, 3) for stage, share in now.stages_since(before, seconds).items()}


def _each(values: Iterable[T], within: Callable[[], AbstractContextManager[None]]) -> Iterator[T]:
    """The values, each taken within such a context."""
    source = iter(values)
    while True:
        with within():
            try:
                value = next(source)
            except StopIteration:
                return
        yield value


def _share(spent: float, seconds: float) -> float:
    return max(0.0, min(1.0, spent / seconds)) if seconds else 0.0


def bottleneck(shares: dict[str, float]) -> str:
    """One line: how busy the stages are, and which one is the limit."""
    limit = limiting(shares) or "none of the stages; starting up, or Python between them"
    return f"bottleneck: {limit} (busy: {listed(shares)})"


def limiting(shares: dict[str, float]) -> str | None:
    """What the busiest stage does, if the others wait for it."""
    most = max(shares, key=lambda stage: shares[stage])
    return _DOING[most] if shares[most] >= BUSY else None


def listed(shares: dict[str, float]) -> str:
    """How busy each stage is, in words."""
    return ", ".join(f"{_DOING[stage]} {100 * share:.0f} %" for stage, share in shares.items())
