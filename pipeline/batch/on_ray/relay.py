"""The actor: starts the process that computes, on its node, and hands on what that and the driver say to each other.

This module goes to the nodes by value, and so runs where another tvae is, or none; it imports nothing of tvae but what
is there. Messages pass through it as bytes. When the actor ends, for whatever reason, the process's stdin ends, and it
ends as a run does that Ctrl-C interrupts.
"""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
import sys
import threading
import time
from queue import Empty, Queue
from typing import Any

__all__ = ["LENGTH_BYTES", "Relay"]

LENGTH_BYTES = 8
"""Before each message, after a byte that says whether it may wait; see ``send`` in
``tvae.pipeline.jobs.devices.messages``."""
_WAITING = 1024
"""Messages that the driver has not fetched; then the process waits."""
_AT_ONCE = 256
"""Messages that are fetched together."""
_HEAR_SECONDS = 10.0
"""That a fetch waits for the first message."""
_GATHER_SECONDS, _SOON_SECONDS = 1.0, 0.02
"""That it waits for more, and after a message that cannot wait: a fetch costs the driver and the actor milliseconds,
and an item has three messages."""
_SEE_SECONDS = 5.0
"""That a file of another machine may take to be seen."""


class Relay:
    """See the module. Each method is called by one thread at a time; ``hear`` and ``kill`` beside the others."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._said: Queue[tuple[bytes, bool] | None] = Queue(_WAITING)

    def place(self, folder: str, proof: str) -> dict[str, Any]:
        """Where it is, and what is there. folder: that names of files are from; proof: a file that all nodes are to
        see, if any."""
        found: dict[str, Any] = {"host": platform.node(), "python": platform.python_version()}
        end = time.monotonic() + _SEE_SECONDS
        while proof and not os.path.exists(proof) and time.monotonic() < end:
            time.sleep(0.1)
        found["sees"] = not proof or (os.path.exists(proof) and os.path.isdir(folder))
        try:
            from tvae.pipeline.batch.on_ray.identity import identity

            found["identity"] = identity()
        except ImportError as error:
            found["absent"] = str(error)
        return found

    def start(self, arguments: list[str], folder: str) -> None:
        """The process: this Python with these arguments, in the folder where there is one."""
        pipe, there = subprocess.PIPE, folder if os.path.isdir(folder) else None
        self._process = subprocess.Popen([sys.executable, *arguments], stdin=pipe, stdout=pipe, cwd=there)
        threading.Thread(target=self._listen, name="tvae-hears", daemon=True).start()

    def _listen(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError, ValueError), self._process.stdout as said:
            while len(head := said.read(1 + LENGTH_BYTES)) == 1 + LENGTH_BYTES:
                size = int.from_bytes(head[1:], "big")
                if len(data := said.read(size)) < size:
                    break
                self._said.put((data, bool(head[0])))
        self._said.put(None)

    def tell(self, data: bytes) -> None:
        """To the process; one that has gone is not told."""
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(bytes(1) + len(data).to_bytes(LENGTH_BYTES, "big") + data)
            self._process.stdin.flush()

    def hear(self) -> tuple[list[bytes], int | None]:
        """Messages of the process, none or more, and how it ended: None, it has not; then there are no more."""
        found: list[bytes] = []
        wait, end = _HEAR_SECONDS, time.monotonic() + _HEAR_SECONDS + _GATHER_SECONDS
        with contextlib.suppress(Empty):
            while len(found) < _AT_ONCE:
                said = self._said.get(timeout=wait) if wait > 0 else self._said.get_nowait()
                if said is None:
                    return found, self._ended()
                now = time.monotonic()
                found.append(said[0])
                end = min(end, now + (_GATHER_SECONDS if said[1] else _SOON_SECONDS))
                wait = end - now
        return found, None

    def _ended(self) -> int:
        assert self._process is not None
        code = self._process.wait()
        self.dismiss()
        return code

    def dismiss(self) -> None:
        """Nothing more will be told."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError, ValueError):
                self._process.stdin.close()

    def kill(self) -> None:
        """The process, whatever it does."""
        if self._process is not None:
            self._process.kill()
