"""Items one after the other, each of which all devices share by rows.

The process of the first device does the job: it reads, writes, and computes with the others, which have no items and
make the same calls at the same time. What one of them cannot do none can: the group ends, its item fails, and a new
group does the rest.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Sequence
from queue import Empty, Queue
from typing import Any

from tvae.pipeline.errors import RankError
from tvae.pipeline.files.staging import scratch_folder
from tvae.pipeline.jobs.context import Context
from tvae.pipeline.jobs.devices.messages import Failed, Followed, Ordered
from tvae.pipeline.jobs.devices.process import Inbox
from tvae.pipeline.jobs.devices.run import DevicesRun, processes_of
from tvae.pipeline.jobs.devices.shares import Shares
from tvae.pipeline.jobs.outcome import End
from tvae.pipeline.jobs.outputs import Item

__all__ = ["by_rows"]

_FIRST = 0
"""The process that has the items."""
_CAUSE_SECONDS = 2.0
"""That the cause may come later than the complaint of another process that it does not answer any more."""


def by_rows(items: Sequence[Item], context: Context, devices: Sequence[str], end: End) -> None:
    """Does all items; ``end``: see ``over_devices``. Raises what a device raises of the request as a whole, and
    RankError where devices cannot be used, or are lost before they have begun an item."""
    shares, begun = Shares(items, 1), False
    with scratch_folder() as folder:
        for number in range(2 * len(items) + 1):  # each group that is lost costs an item, after two chances
            inbox: Inbox = Queue()
            with processes_of(context.job_elsewhere, devices, inbox, str(folder / str(number))) as processes:
                _Group(shares, context, processes, inbox, end).run(None if begun else len(items))
            if not shares.left:
                return
            begun = True
            shares.regain(_FIRST)


class _Group(DevicesRun):
    """All processes, or none."""

    def __init__(self, *run: Any) -> None:
        super().__init__(*run)
        self._ordered: Counter[int] = Counter()

    @property
    def _takers(self) -> list[int]:
        return [_FIRST] if self._alive else []

    @property
    def _watched(self) -> Collection[int]:
        return [*(+self._ordered), *super()._watched]

    def _next(self, watched: Collection[int]) -> tuple[int, Any]:
        number, message = super()._next(watched)
        if isinstance(message, Ordered):
            for other, process in self._alive.items():
                if other != number:
                    self._silence.heard(other)
                    self._ordered[other] += 1
                    process.tell(message)
        elif isinstance(message, Followed):
            self._ordered[number] -= 1
        return number, message

    def _hear(self, number: int, message: Any) -> None:
        if isinstance(message, Ordered | Followed):
            return
        if isinstance(message, Failed) and message.lost and message.raised.kind == RankError.__name__:
            number, message = self._cause_of(number, message)
        super()._hear(number, message)

    def _cause_of(self, number: int, complaint: Failed) -> tuple[int, Any]:
        """What another process says, or that it is gone, in the place of a complaint that it does not answer."""
        end = time.monotonic() + _CAUSE_SECONDS
        while (left := end - time.monotonic()) > 0:
            try:
                other, message = self._inbox.get(timeout=left)
            except Empty:
                break
            complains = isinstance(message, Failed) and message.raised.kind == RankError.__name__
            if other != number and not complains and (message is None or isinstance(message, Failed)):
                return other, message
            if isinstance(message, Failed) or message is None:
                continue
            self._hear(other, message)
        return number, complaint

    def _lose(self, number: int, cause: str, *, silently: bool = False) -> None:
        device = self._processes[number].device
        for process in self._processes:
            process.kill()  # they wait for one another
        self._alive.clear()
        loss = self._shares.lost(_FIRST, silently=silently and number == _FIRST)
        self._fail_all(loss, device, cause)
        if not loss.begun and loss.fatal is None and not loss.suspected and self._shares.left:
            raise RankError(f"{device} was lost ({cause}); complete results stay; run again")
