"""What is to be seen of a run while it goes on: bars, the expected end, how busy devices are, the last failures.

It is told events by one thread and drawn by another (see :class:`tvae.cli.screen.Screen`).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

from tvae.cli.reporting import one_line, printable
from tvae.pipeline import jobs
from tvae.pipeline.jobs.busy import Load, limiting, listed
from tvae.pipeline.jobs.events import ItemVerified

__all__ = ["Dashboard"]

FAILURES = 3
"""The last ones, that stay in sight."""
DEVICES = 8
"""That are named each; of more, the average and the least busy one."""
WINDOW_SECONDS = 10.0
"""Over which shares are taken."""
SOON_SECONDS = 60.0
"""Up to which the time of the day at which a run ends is not told."""
BAR, BESIDE = 40, 64
"""Columns of a bar at most, and of what is beside it; a narrow terminal has short bars, a very narrow one has none."""


class Dashboard:
    """Something that Rich prints; give :meth:`show` each event. clock: seconds, for all that is a rate."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._bars = Progress(console=console, auto_refresh=False, get_time=clock)  # drawn as a part of this
        self._run: TaskID | None = None
        self._items: dict[int, TaskID] = {}
        self._computed: set[int] = set()
        self._failures: deque[str] = deque(maxlen=FAILURES)
        self._failed = 0
        self._load: Callable[[], Load] | None = None
        self._seen: deque[tuple[float, Load]] = deque()

    def show(self, event: jobs.Event) -> None:
        """Takes note of it; draws nothing."""
        match event:
            case jobs.RunStarted():
                self._begin(event)
            case jobs.ItemStarted() if event.kind == "video":
                name = printable(event.input.name)
                self._items[event.index] = self._bars.add_task(name, total=event.frames, unit="frames")
            case jobs.Retried():
                self._drop(event.index)
            case jobs.Progress() if event.index in self._items:
                self._bars.update(self._items[event.index], completed=event.done)
            case jobs.Progress() if self._run is not None and event.done == event.total:
                self._computed.add(event.index)  # it may wait long for the others of its shard
                self._bars.advance(self._run)
            case jobs.ItemDone() | jobs.ItemFailed() | jobs.ItemSkipped() | jobs.ItemPlanned() | ItemVerified():
                self._drop(event.index)
                if isinstance(event, jobs.ItemFailed):
                    self._fail(event.input, event.error)
                if self._run is not None and event.index not in self._computed:
                    self._bars.advance(self._run)
                self._computed.discard(event.index)
            case jobs.RunDone():
                self._end()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        self._bars.columns = tuple(_columns(options.max_width))
        yield self._bars
        with self._lock:
            lines = [*self._lines()] if self._run is not None else []
        for line in lines:
            yield Text(line, no_wrap=True, overflow="ellipsis", end="\n")

    def _begin(self, event: jobs.RunStarted) -> None:
        """One run after the other, in a batch: each has its bar, and failures stay in sight. Of a check the number of
        items is not known before."""
        self._end()
        with self._lock:
            self._load = event.load
            self._seen.clear()
            if event.items != 1:
                self._run = self._bars.add_task(event.operation, total=event.items or None, unit="items")

    def _end(self) -> None:
        with self._lock:
            run, self._run, self._load = self._run, None, None
        if run is not None:
            self._bars.remove_task(run)

    def _drop(self, index: int) -> None:
        if index in self._items:
            self._bars.remove_task(self._items.pop(index))

    def _fail(self, source: Path, error: str) -> None:
        """By its name alone: in a line of a terminal a path leaves no room for the reason."""
        for path in (source.absolute(), source):
            error = error.replace(str(path), source.name)
        told = one_line(error)
        with self._lock:
            self._failed += 1
            self._failures.append(told if source.name in error else f"{printable(source.name)}: {told}")

    def _lines(self) -> Iterator[str]:
        left = self._seconds_left()
        if left is not None and left > SOON_SECONDS:
            yield f"ends about {_time_of_day(left)}"
        if self._load is not None:
            yield from self._busy(self._load())
        if self._failed:
            yield f"failed: {self._failed}" + (f", the last {FAILURES}:" if self._failed > FAILURES else "")
            yield from (f"  {failure}" for failure in self._failures)

    def _seconds_left(self) -> float | None:
        task = next((task for task in self._bars.tasks if task.id == self._run), None)
        return None if task is None else task.time_remaining

    def _busy(self, load: Load) -> Iterator[str]:
        """Of each device, and of the stages, in the last seconds."""
        now = self._clock()
        self._seen.append((now, load))
        while now - self._seen[1 if len(self._seen) > 1 else 0][0] > WINDOW_SECONDS:
            self._seen.popleft()
        since, before = self._seen[0]
        if now - since < 1.0:
            return  # too short to say
        busy = load.busy_since(before, now - since)
        if any(load.devices.values()):
            yield f"busy: {_devices(busy)}"
        stages = load.stages_since(before, now - since)
        if any((*load.stages.values(), *load.clips.values())):
            yield f"stages: {listed(stages)}; bottleneck: {limiting(stages) or 'none'}"


def _devices(busy: dict[str, float]) -> str:
    if len(busy) <= DEVICES:
        return ", ".join(f"{printable(name)} {100 * share:.0f} %" for name, share in busy.items())
    least = min(busy, key=lambda name: busy[name])
    average = sum(busy.values()) / len(busy)
    return (
        f"{len(busy)} devices {100 * average:.0f} % on average, least {printable(least)} with {100 * busy[least]:.0f} %"
    )


def _time_of_day(left: float) -> str:
    end = time.localtime(time.time() + left)
    return time.strftime("%H:%M" if left < 12 * 3600 else "%a %H:%M", end)


def _columns(width: int) -> Iterator[ProgressColumn]:
    yield TextColumn("{task.description}", markup=False)
    if width >= BESIDE:
        yield BarColumn(min(BAR, max(8, width - BESIDE)))
    yield MofNCompleteColumn()
    yield _Rate(Column(no_wrap=True))
    if width >= BESIDE // 2:
        yield TimeRemainingColumn()


class _Rate(ProgressColumn):
    """How many a second."""

    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:.1f} {task.fields['unit']}/s")
