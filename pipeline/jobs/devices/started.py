"""Processes of devices before it is known what they are to do.

Such a process imports PyTorch first, which takes it seconds, and so does the run, which finds out meanwhile which
devices there are and what is left to do. So they start when the run does.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from tvae.pipeline.settings.cores import usable_cores

__all__ = ["COMMAND", "start_more", "started", "started_early"]

COMMAND = (sys.executable, "-P", "-m", "tvae.pipeline.jobs.devices")
_MOST = 16
"""Processes that start early: how many devices there are shows later."""
Started = subprocess.Popen[bytes]


class _Waiting(list[Started]):
    """Processes that nobody has taken yet; ``ended`` ends them."""

    def __init__(self, ended: contextlib.ExitStack) -> None:
        super().__init__()
        self._ended = ended

    def start(self, count: int) -> None:
        """So many more."""
        with contextlib.suppress(OSError):  # told when it is needed
            for _ in range(min(count, _MOST)):
                self.append(_start())
                self._ended.callback(_end, self[-1], self)


_waiting: ContextVar[_Waiting | None] = ContextVar("tvae_waiting", default=None)


@contextmanager
def started_early(count: int) -> Iterator[None]:
    """For the length of a run. Those that nobody has taken are ended with it. Where there are not enough processors for
    the run and each of them, none starts: they would slow the run down."""
    with contextlib.ExitStack() as ended:
        waiting = _Waiting(ended)
        token = _waiting.set(waiting)
        ended.callback(_waiting.reset, token)
        if count < usable_cores():
            waiting.start(count)
        yield


def start_more(count: int) -> None:
    """The same for a run that is under way and has found out that it will probably want them."""
    waiting = _waiting.get()
    if waiting is not None and len(waiting) + count < usable_cores():
        waiting.start(count)


def started() -> Started:
    """One that is there already, or else a new one. Raises OSError."""
    waiting = _waiting.get()
    while waiting:
        process = waiting.pop(0)
        if process.poll() is None:
            return process
        _close(process)
    return _start()


def _start() -> Started:
    # as this process finds its modules
    paths = os.pathsep.join(os.path.abspath(path) for path in sys.path if path)
    own_group: dict[str, Any] = {"process_group": 0}
    if sys.platform == "win32":
        own_group = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
    pipe = subprocess.PIPE
    return subprocess.Popen(COMMAND, stdin=pipe, stdout=pipe, env=os.environ | {"PYTHONPATH": paths}, **own_group)


def _end(process: Started, waiting: list[Started]) -> None:
    if any(process is one for one in waiting):
        process.kill()
        process.wait()
        _close(process)


def _close(process: Started) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
