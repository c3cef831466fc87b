"""Items over several devices: a process for each, which is given items while others have theirs."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from queue import Empty, Queue
from typing import Any

from tvae.pipeline.errors import InputError, RankError, TvaeError, UsageError
from tvae.pipeline.files.bell import POLL_SECONDS
from tvae.pipeline.files.leftovers import remove_leftovers
from tvae.pipeline.jobs.cache_names import cached_folders
from tvae.pipeline.jobs.context import Context
from tvae.pipeline.jobs.devices.alive import Silence
from tvae.pipeline.jobs.devices.messages import (
    Alive,
    Claim,
    ClaimAnswer,
    Ended,
    Failed,
    Finished,
    Give,
    Logged,
    NoMore,
    Raised,
    Ranks,
    Ready,
    Told,
    Took,
    Worked,
)
from tvae.pipeline.jobs.devices.process import DeviceProcess, Inbox, Process
from tvae.pipeline.jobs.devices.shares import Loss, Shares
from tvae.pipeline.jobs.events import DeviceLost, ItemFailed, ItemStarted, RunStarted
from tvae.pipeline.jobs.job import Job
from tvae.pipeline.jobs.outcome import End
from tvae.pipeline.jobs.outputs import Item, results_folder

__all__ = ["DevicesRun", "over_devices", "processes_of"]

_log = logging.getLogger("tvae")


def over_devices(items: Sequence[Item], context: Context, devices: Sequence[str], end: End) -> None:
    """Does all items; ``end`` is told of each, in the caller's thread, in the order in which they end.

    Nothing is begun before every device is ready. A device that is lost later costs what it was at work on. Raises what
    a device raises of the request as a whole, and RankError where no device is left.
    """
    inbox: Inbox = Queue()
    with processes_of(context.job_elsewhere, devices, inbox) as processes:
        DevicesRun(Shares(items, len(devices)), context, processes, inbox, end).run(len(items))


@contextmanager
def processes_of(
    job: Job, devices: Sequence[str], inbox: Inbox, meeting: str | None = None
) -> Iterator[list[DeviceProcess]]:
    """One for each name; none is left afterwards. Ctrl-C, or another, while they end kills them. meeting: see
    ``Ranks``."""
    processes: list[DeviceProcess] = []
    try:
        for number, device in enumerate(devices):
            ranks = None if meeting is None else Ranks(number, len(devices), meeting, job.split == "rows")
            its = replace(job, device=device, devices=None, split="auto", sharers=devices.count(device))
            processes.append(DeviceProcess(number, device, its, inbox, ranks))
        yield processes
    finally:
        try:
            for process in processes:
                process.dismiss()
            for process in processes:
                process.wait()
        except BaseException:
            for process in processes:
                process.kill()
            raise


class DevicesRun:
    """Items for processes, until all have ended. shares: of the items, by the numbers of the processes."""

    def __init__(
        self,
        shares: Shares,
        context: Context,
        processes: Sequence[Process],
        inbox: Inbox,
        end: End,
    ) -> None:
        self._shares, self._context, self._processes, self._inbox, self._end = shares, context, processes, inbox, end
        self._alive = {process.number: process for process in processes}
        self._silence = Silence()

    def run(self, items: int | None) -> None:
        """items: how many the run begins with; None: it has begun before."""
        try:
            started = self._begin(items or 0)
        except BaseException:
            for process in self._processes:  # which have begun nothing, and may be in the midst of a long import
                process.kill()
            raise
        if items is not None:
            self._context.emit(started)
        self._work()
        self._finish()

    @property
    def _takers(self) -> list[int]:
        """Processes that are given items."""
        return [*self._alive]

    @property
    def _watched(self) -> Collection[int]:
        """Processes that have something to do."""
        return self._shares.at_work

    @property
    def _goes_on(self) -> bool:
        """Is there anybody to do what is left?"""
        return bool(self._alive)

    def _begin(self, items: int) -> RunStarted:
        """Until all devices are ready."""
        ready: dict[int, Ready] = {}
        while len(ready) < len(self._processes):
            number, message = self._next(self._alive.keys() - ready.keys())
            device = self._processes[number].device
            if isinstance(message, Ready):
                ready[number] = message
            elif isinstance(message, Failed):
                raise message.raised.error(f"{device}: ")
            elif message is None or isinstance(message, Silence):
                raise RankError(f"{device} cannot be used: {self._gone(number, message)}")
        devices = [process.device for process in self._processes]
        return self._started(devices, [ready[process.number] for process in self._processes], items)

    def _started(self, devices: Sequence[str], told: Sequence[Ready], items: int) -> RunStarted:
        """What a run begins with, by what a process of each device has told."""
        dtypes = {one.dtype for one in told}
        if len(dtypes) > 1:
            found = ", ".join(f"{device} in {one.dtype}" for device, one in zip(devices, told, strict=True))
            raise UsageError(f"the devices' presets do not compute alike ({found}); choose one type with --dtype")
        names = None if told[0].device is None else ",".join(str(one.device) for one in told)
        job = self._context.job
        return RunStarted(job.operation, items, told[0].vae, told[0].dtype, names, told[0].vae_name)

    def _work(self) -> None:
        """Until every item has ended."""
        self._share_out()
        while self._shares.left and self._goes_on:
            first = self._next(self._watched)
            with self._context.together():
                self._hear(*first)
                while not self._inbox.empty():  # items are given together that can be
                    self._hear(*self._next(()))
            self._share_out()

    def _finish(self) -> None:
        """Until every device has told how long it was at work."""
        for process in self._alive.values():
            process.tell(NoMore())
        while self._alive:
            number, message = self._next(self._alive)
            if isinstance(message, Finished):
                self._tell_busy(number, message)
            if isinstance(message, Silence):
                self._processes[number].kill()
            if message is None or isinstance(message, Finished | Failed | Silence):
                self._alive.pop(number, None)

    def _next(self, watched: Collection[int]) -> tuple[int, Any]:
        """The next message, or that one of these is silent for too long."""
        while True:
            self._silence.pass_time()
            try:
                number, message = self._inbox.get(timeout=POLL_SECONDS)
            except Empty:
                self._nothing_heard()
                silent = next((number for number in watched if self._silence.too_long(number)), None)
                if silent is not None:
                    return silent, self._silence
                continue
            self._silence.heard(number)
            if isinstance(message, Logged):
                _log.log(message.level, "%s: %s", self._processes[number].device, message.text)
            return number, message

    def _nothing_heard(self) -> None:
        """For a moment."""

    def _share_out(self) -> None:
        """Every device is given what it can take now, one item after the other for each."""
        given: dict[int, list[Item]] = {number: [] for number in self._takers}
        taking = [*given]
        while taking:
            for number in [*taking]:
                item = self._shares.next_for(number)
                if item is None:
                    taking.remove(number)
                else:
                    given[number].append(item)
        for number, items in given.items():
            if items:
                self._silence.heard(number)
                apart, uploads = any(map(self._shares.suspected, items)), self._context.uploads
                told = items if uploads is None else map(uploads.away, items)
                self._alive[number].tell(Give(tuple(told), apart=apart))

    def _hear(self, number: int, message: Any) -> None:
        if number not in self._alive:
            return  # of a device that was lost: its process has gone
        if isinstance(message, Told):
            if isinstance(message.event, ItemStarted):
                self._shares.started(message.event.index, message.event.kind)
            self._context.emit(message.event)
        elif isinstance(message, Ended):
            item = self._shares.ended(number, message.index)
            if message.notices:
                self._context.notify(item, message.notices)
            self._end(item, message.event)
        elif isinstance(message, Claim):
            self._processes[number].tell(ClaimAnswer(message.number, self._claimed(message)))
        elif isinstance(message, Alive | Logged):
            return
        elif isinstance(message, Worked):
            self._tell_busy(number, message)
        elif isinstance(message, Took):
            self._shares.took(number, message.index, message.thread)
        elif isinstance(message, Failed) and not message.lost:
            raise message.raised.error(f"{self._processes[number].device}: ")
        elif isinstance(message, Failed):
            self._lose(number, _first_line(message.raised.message))
        else:
            self._lose(number, self._gone(number, message), silently=True)

    def _tell_busy(self, number: int, message: Worked | Finished) -> None:
        process = self._processes[number]
        self._context.busy.told(process, process.device, message.threads, message.seconds)

    def _gone(self, number: int, silence: Silence | None) -> str:
        """Why a process that said nothing is no more."""
        if silence is None:
            return self._processes[number].cause()
        self._processes[number].kill()
        return silence.cause

    def _claimed(self, claim: Claim) -> Path | Raised:
        uploads = self._context.uploads
        try:
            if uploads is None:
                return self._context.claim(claim.item, claim.kind)
            return uploads.path(self._context.claim(uploads.here(claim.item), claim.kind))
        except TvaeError as error:
            return Raised.of(error)

    def _lose(self, number: int, cause: str, *, silently: bool = False) -> None:
        process, loss = self._alive.pop(number), self._shares.lost(number, silently=silently)
        device = process.device
        self._context.busy.forget(process)
        process.wait()
        self._context.emit(DeviceLost(device, cause))
        self._fail_all(loss, device, cause)
        if not self._alive and self._shares.left:
            raise RankError(f"no device is left, {device} was the last ({cause}); complete results stay; run again")

    def _fail_all(self, loss: Loss, device: str, cause: str) -> None:
        folders = {results_folder(self._context.job), *(item.folder for item in loss.begun)}
        remove_leftovers(folders | cached_folders(loss.begun, self._context.job))
        for item in loss.begun:
            self._fail(item, f"{device} was lost while it was at work on it ({cause}); run again")
        if loss.fatal is not None:
            self._fail(loss.fatal, f"a second device was lost that opened it, {device} ({cause}); leave it out")

    def _fail(self, item: Item, why: str) -> None:
        message = f"{item.source}: {why}"
        self._end(item, ItemFailed(item.source, item.index, message, InputError(message)))


def _first_line(message: str) -> str:
    return (message.strip() or "it does not answer").splitlines()[0]
