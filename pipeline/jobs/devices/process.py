"""The process of a device, seen from the run: started, told, heard and ended."""

from __future__ import annotations

import contextlib
import logging
import subprocess
import threading
from queue import Queue
from typing import Any, Protocol

from tvae.pipeline.errors import RankError
from tvae.pipeline.files.bell import join
from tvae.pipeline.files.process_end import end_of
from tvae.pipeline.jobs.devices.messages import Begin, Ranks, receive, send
from tvae.pipeline.jobs.devices.started import started
from tvae.pipeline.jobs.job import Job

__all__ = ["DeviceProcess", "Inbox", "Process"]

END_SECONDS = 60.0
"""That a process has to end by itself: a step of a clip and what is being written are finished first."""
_log = logging.getLogger("tvae")

Inbox = Queue[tuple[int, Any]]
"""Number of the process, and its message; None once it has gone."""


class Process(Protocol):
    """That does a job with the items that it is given. See ``DeviceProcess``."""

    number: int
    device: str

    def tell(self, message: object) -> None: ...
    def dismiss(self) -> None: ...
    def wait(self) -> None: ...
    def kill(self) -> None: ...
    def cause(self) -> str: ...


class DeviceProcess:
    """Does a job on one device with the items that it is given. A Ctrl-C at the terminal does not reach it: it is told
    to end, and ends when the run's process is gone, too."""

    def __init__(self, number: int, device: str, job: Job, inbox: Inbox, ranks: Ranks | None = None) -> None:
        """ranks: see ``Begin``."""
        self.number, self.device = number, device
        try:
            self._process = started()
        except OSError as error:
            raise RankError(f"the process of {device} does not start: {error.strerror or error}") from error
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._orders, self._answers = self._process.stdin, self._process.stdout
        self._inbox = inbox
        self._to_tell: Queue[object] = Queue()
        self._hearing = threading.Thread(target=self._hear, name=f"tvae-hears-{device}", daemon=True)
        self._telling = threading.Thread(target=self._tell_all, name=f"tvae-tells-{device}", daemon=True)
        self._hearing.start()
        self._telling.start()
        self.tell(Begin(job, _log.getEffectiveLevel() if _log.handlers else None, ranks))

    def _hear(self) -> None:
        with self._answers, contextlib.suppress(EOFError, OSError, ValueError):
            while True:
                self._inbox.put((self.number, receive(self._answers)))
        self._inbox.put((self.number, None))

    def _tell_all(self) -> None:
        with contextlib.suppress(OSError, ValueError), self._orders:
            while (message := self._to_tell.get()) is not None:
                send(self._orders, message)

    def tell(self, message: object) -> None:
        """Without waiting: one that hangs does not read. One that has gone is not told: its last message says so."""
        self._to_tell.put(message)

    def dismiss(self) -> None:
        """Nothing more will be told: it ends, at the next place where it can."""
        self._to_tell.put(None)

    def wait(self) -> None:
        """Until it has ended, ``END_SECONDS`` at most. Nothing more is told."""
        self.dismiss()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
        if self._process.returncode is not None:
            join([self._hearing, self._telling])

    def kill(self) -> None:
        """It is gone afterwards, whatever it did; but the system may keep one that its device does not let go."""
        self.dismiss()
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS)

    def cause(self) -> str:
        """Why a process that said nothing has gone."""
        self.wait()
        code = self._process.returncode
        return f"its process {'ended with' if code >= 0 else 'was ended by'} {end_of(code)}"
