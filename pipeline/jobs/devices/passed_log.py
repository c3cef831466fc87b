"""What a device's process logs goes to the run."""

from __future__ import annotations

import logging
from collections.abc import Callable

from tvae.pipeline.jobs.devices.messages import Logged

__all__ = ["pass_log"]


def pass_log(level: int, tell: Callable[[object], None]) -> None:
    """From now on, what is of this level and above."""
    log = logging.getLogger("tvae")
    log.setLevel(level)
    log.addHandler(_Passing(tell))


class _Passing(logging.Handler):
    def __init__(self, tell: Callable[[object], None]) -> None:
        super().__init__()
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        self._tell(Logged(record.levelno, self.format(record)))
