"""A process that decodes for a sandbox, seen from outside: asked, timed, and ended."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from io import BufferedReader
from typing import IO, Any, cast

import numpy as np

from tvae.pipeline.errors import UsageError
from tvae.pipeline.files.process_end import end_of
from tvae.pipeline.media.deadlines import Deadlines
from tvae.pipeline.media.sandbox_messages import receive, seconds_for, send

__all__ = ["DecoderProcess", "DiedError"]

if sys.platform == "linux":
    import fcntl

_PIPE_BYTES = 1 << 20
"""Most that Linux gives who is not root, instead of 64 KiB."""
LEAST_SECONDS = 60.0
"""That an answer may take, however small the file."""
_START_SECONDS = 60.0
_DEADLINES = Deadlines()
COMMAND = (sys.executable, "-P", "-m", "tvae.pipeline.media.sandbox_worker")


class DiedError(Exception):
    """A process ended, or was ended, before its answer."""


class DecoderProcess:
    """Answers one thread at a time."""

    def __init__(self) -> None:
        # as this process finds its modules; numbers are computed by one thread
        paths = os.pathsep.join(os.path.abspath(path) for path in sys.path if path)
        settings = {"PYTHONPATH": paths, "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
        pipe = subprocess.PIPE
        try:
            self._process = subprocess.Popen(
                COMMAND, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=os.environ | settings
            )
        except OSError as error:
            raise _not_started(str(error.strerror)) from error
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._questions, self._answers = self._process.stdin, self._process.stdout
        _widen(self._answers)
        self.served = False
        """Has it answered before?"""
        self.timed_out = False

    @property
    def least(self) -> float:
        """See ``LEAST_SECONDS``."""
        return LEAST_SECONDS

    def begin(self) -> None:
        """Waits until it is ready. Raises UsageError where it does not start."""
        try:
            with self._within(_START_SECONDS):
                receive(self._answers)
        except (OSError, ValueError, EOFError):
            self.end()
            raise _not_started(self._cause()) from None

    @contextlib.contextmanager
    def asked(self, work: int) -> Iterator[None]:
        """Around questions and their answers. work: bytes, of which each second has ``SLOWEST`` at least.

        Raises DiedError where it ends, takes longer, or gives a wrong answer, which a ValueError inside says.
        """
        try:
            with self._within(seconds_for(work, LEAST_SECONDS)):
                yield
        except (OSError, EOFError):
            self.end()
            raise DiedError(self._cause()) from None
        except ValueError as error:
            self.end()
            wrong = f"its decoder gave a wrong answer ({error})"
            raise DiedError(self._cause() if self.timed_out else wrong) from None

    def send(self, question: dict[str, Any]) -> None:
        """Inside of ``asked``."""
        send(self._questions, question)

    def receive(self) -> dict[str, Any]:
        """Inside of ``asked``."""
        return receive(self._answers)

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """Inside of ``asked``: its answer."""
        self.send(question)
        return self.receive()

    def pixels(self, height: int, width: int, channels: int = 3) -> np.ndarray:
        """Inside of ``asked``: uint8 [H, W, C], which follow an answer."""
        rgb = np.empty((height, width, channels), np.uint8)
        if cast(BufferedReader, self._answers).readinto(rgb.data.cast("B")) != rgb.nbytes:
            raise EOFError
        return rgb

    def end(self) -> None:
        """It is gone afterwards, whatever it did."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._questions, self._answers):
            with contextlib.suppress(OSError, ValueError):
                pipe.close()

    def _within(self, seconds: float) -> contextlib.AbstractContextManager[None]:
        def too_late() -> None:
            self.timed_out = True
            self._process.kill()

        self._seconds = seconds
        return _DEADLINES.within(seconds, too_late)

    def _cause(self) -> str:
        """Why a process that is gone is gone."""
        if self.timed_out:
            return f"its decoder took more than {self._seconds:.3g} seconds and was stopped"
        code = self._process.returncode
        return f"its decoder ended with {end_of(code)}" if code >= 0 else f"its decoder crashed ({end_of(code)})"


def _widen(pipe: IO[bytes]) -> None:
    """Pixels come in few pieces: after each one this process waits for its interpreter's lock."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # all pipes of a user may have so many bytes, and no more
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)


def _not_started(why: str) -> UsageError:
    return UsageError(f"the process that decodes does not start ({why}); --sandbox off does without it")
