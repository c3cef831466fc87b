"""The file of ``--log``: a line with its time for each event of a run, appended."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from tvae.cli.reporting import one_line, say
from tvae.pipeline import jobs
from tvae.pipeline.errors import UsageError
from tvae.pipeline.files.atomic import takes_a_stream
from tvae.pipeline.files.own_file import MARKS, check_own
from tvae.pipeline.jobs.events import ItemVerified

__all__ = ["LogFile"]


class LogFile:
    """A context manager; give :meth:`tell` each event. Makes the folder that the file is in.

    Raises UsageError where it cannot be opened, before any work; one that takes no more later is told once, and the run
    continues without it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[str] | None = None

    def __enter__(self) -> Self:
        try:
            check_own(self._path, "log")
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("a", encoding="utf-8", errors="backslashreplace")
            if self._file.tell() == 0 and not takes_a_stream(self._path):
                self._file.write(f"{MARKS['log']}\n")
        except OSError as error:
            raise UsageError(f"cannot write the log {self._path}: {error.strerror or error}; name another") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._write(f"ended by {type(error).__name__}: {error}")
        if self._file is not None:
            self._drop()

    def tell(self, event: jobs.Event) -> None:
        """A line, for an event that says more than how far an item is."""
        match event:
            case jobs.RunStarted():
                of = "" if event.vae_name is None else f" ({event.vae_name})"
                named = "" if event.vae is None else f" with {event.vae}{of} in {event.dtype} on {event.device}"
                self._write(f"{event.operation} of {event.items} items{named}")
            case jobs.ItemDone():
                self._write(f"done {event.input} -> {event.output} in {event.seconds:.3f} s")
            case jobs.ItemSkipped():
                self._write(f"skipped {event.input} -> {event.output}: {event.reason}")
            case jobs.ItemPlanned():
                why = f": {event.reason}" if event.reason else ""
                self._write(f"{event.state or 'planned'} {event.input} -> {event.output}{why}")
            case ItemVerified(reason=str()):
                self._write(f"{event.state} {event.input}: {event.reason}")
            case jobs.ItemFailed():
                self._write(f"failed {event.input}: {event.error}")
            case jobs.Notice():
                self._write(f"warning {event.input}: {event.message}")
            case jobs.DeviceLost():
                self._write(f"lost {event.device}: {event.error}")
            case jobs.RunDone():
                counts = ", ".join(
                    f"{getattr(event, name)} {name}" for name in ("done", "skipped", "planned", "failed")
                )
                self._write(f"{counts} in {event.seconds:.1f} s")

    def _write(self, text: str) -> None:
        if self._file is None:
            return
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        try:
            self._file.write(f"{now} {one_line(text)}\n")
            self._file.flush()
        except OSError as error:
            say(f"warning: cannot write {self._path} any more: {error.strerror or error}")
            self._drop()

    def _drop(self) -> None:
        file, self._file = self._file, None
        try:
            assert file is not None, "it is dropped once"
            file.close()
        except OSError as error:
            say(f"warning: cannot write {self._path}: {error.strerror or error}")
