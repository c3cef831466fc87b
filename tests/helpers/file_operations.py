"""A process to which something happens at its n-th file operation below a folder, as Python's audit events tell it."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

KINDS = ("kill", "terminate", "interrupt", "full", "denied")
"""*full* lasts to the end of the process, as a full disk does; *denied* strikes once."""
_CHANGES = {"os.rename", "os.mkdir", "os.rmdir", "os.remove", "os.link", "os.truncate", "os.chmod", "os.utime"}
_GROWS = {"open", "os.mkdir", "os.rename", "os.link"}
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Operations:
    """Counts them in this process, for good; ``strike`` at ``number`` (0: at none)."""

    def __init__(self, folder: Path, kind: str = "", number: int = 0) -> None:
        self.count = 0
        self._folder, self._kind, self._number = os.fspath(folder), kind, number
        self._inside = threading.local()
        sys.addaudithook(self._seen)

    def _seen(self, event: str, values: tuple[Any, ...]) -> None:
        if event != "open" and event not in _CHANGES:
            return
        if getattr(self._inside, "here", False) or not self._mine(event, values):
            return
        self._inside.here = True
        try:
            self.count += 1
            self._strike(event)
        finally:
            self._inside.here = False

    def _mine(self, event: str, values: tuple[Any, ...]) -> bool:
        """Below the folder; what names a file in a folder that was opened counts, too."""
        if event == "open" and not (isinstance(values[2], int) and values[2] & _WRITES):
            return False
        names = [os.fsdecode(value) for value in values if isinstance(value, (str, bytes, os.PathLike))]
        opened = any(isinstance(value, int) and value > 2 for value in values[1:]) and event in (
            "os.remove",
            "os.rmdir",
        )
        return opened or any(name.startswith(self._folder) for name in names)

    def _strike(self, event: str) -> None:
        lasting = self._kind == "full" and self.count > self._number > 0
        if self.count != self._number and not lasting:
            return
        if self._kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self._kind == "terminate":
            os.kill(os.getpid(), signal.SIGTERM)
        elif self._kind == "interrupt":
            os.kill(os.getpid(), signal.SIGINT)
        elif self._kind == "denied":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        elif event in _GROWS:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
