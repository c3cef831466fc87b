"""Several processes on each device, which begin as soon as one of each is ready.

The others join when they are. One that cannot compute (a GPU may be for one process only, or have no memory left)
costs nothing while there is another on its device.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from queue import Queue
from typing import Any

from tvae.pipeline.errors import RankError
from tvae.pipeline.jobs.context import Context
from tvae.pipeline.jobs.devices.alive import Silence
from tvae.pipeline.jobs.devices.messages import Failed, Ready
from tvae.pipeline.jobs.devices.process import Inbox
from tvae.pipeline.jobs.devices.run import DevicesRun, processes_of
from tvae.pipeline.jobs.devices.shares import Shares
from tvae.pipeline.jobs.events import RunStarted
from tvae.pipeline.jobs.outcome import End
from tvae.pipeline.jobs.outputs import Item

__all__ = ["over_processes"]

_log = logging.getLogger("tvae")


def over_processes(items: Sequence[Item], context: Context, devices: Sequence[str], end: End) -> None:
    """As ``over_devices``; each device is named as often as there are processes on it."""
    inbox: Inbox = Queue()
    with processes_of(context.job_elsewhere, devices, inbox) as processes:
        _SharingRun(Shares(items, len(devices)), context, processes, inbox, end).run(len(items))


class _SharingRun(DevicesRun):
    """See the module's docstring."""

    def __init__(self, *run: Any) -> None:
        super().__init__(*run)
        self._ready: dict[int, Ready] = {}

    @property
    def _takers(self) -> list[int]:
        return [number for number in self._alive if number in self._ready]

    @property
    def _watched(self) -> Collection[int]:
        return [*super()._watched, *(self._alive.keys() - self._ready.keys())]

    def _begin(self, items: int) -> RunStarted:
        first: dict[str, Ready] = {}
        devices = [*dict.fromkeys(process.device for process in self._processes)]
        while first.keys() != {*devices}:
            number, message = self._next(self._watched)
            self._starts(number, message)
            if number in self._ready:
                first.setdefault(self._processes[number].device, self._ready[number])
        for device in devices:
            count = sum(process.device == device for process in self._processes)
            _log.info("%s: small pictures, by %d processes", device, count)
        return self._started(devices, [first[device] for device in devices], items)

    def _hear(self, number: int, message: Any) -> None:
        if number in self._alive and number not in self._ready:
            self._starts(number, message)
        else:
            super()._hear(number, message)

    def _starts(self, number: int, message: Any) -> None:
        """Of a process that has not been ready before. Raises what it cannot do where it is its device's only one."""
        if isinstance(message, Ready):
            self._ready[number] = message
        elif isinstance(message, Failed) or message is None or isinstance(message, Silence):
            self._do_without(number, message)

    def _do_without(self, number: int, message: Failed | Silence | None) -> None:
        process = self._alive.pop(number)
        self._shares.lost(number)
        device = process.device
        error = message.raised.error(f"{device}: ") if isinstance(message, Failed) else None
        if error is None:
            assert not isinstance(message, Failed)
            error = RankError(f"{device} cannot be used: {self._gone(number, message)}")
        if not any(other.device == device for other in self._alive.values()):
            raise error
        _log.info("%s: another process does not start (%s); done without it", device, error)

    def _finish(self) -> None:
        for number in self._alive.keys() - self._ready.keys():
            self._alive.pop(number).kill()
        super()._finish()
