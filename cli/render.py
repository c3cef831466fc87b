"""Shows a run: results on stdout (lines, or JSON objects with ``--json``), progress and complaints on stderr."""

from __future__ import annotations

import json
import sys
import time
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console

from tvae.cli.dashboard import Dashboard
from tvae.cli.reporting import one_line, printable, printable_lines, tell
from tvae.cli.screen import Screen
from tvae.pipeline import jobs
from tvae.pipeline.jobs.busy import bottleneck
from tvae.pipeline.jobs.events import ItemVerified
from tvae.pipeline.settings.collector import work_begins

__all__ = ["Display"]

JSON_SECONDS = 0.5
"""Progress of an item is told at most this often as JSON."""


class Display:
    """A context manager; give :meth:`show` to ``run_job``."""

    def __init__(self, *, as_json: bool, quiet: bool, verbose: bool, progress: bool) -> None:
        self._json, self._quiet, self._verbose = as_json, quiet, verbose
        self._console = Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)
        self._dashboard = Dashboard(self._console)
        shown = progress and not quiet and self._console.is_terminal
        self._screen = Screen(self._console, self._dashboard, shown=shown)
        self._told = 0.0
        self.output: Path | None = None
        """What the item has given that was done last."""

    def __enter__(self) -> Self:
        self._screen.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._screen.__exit__(kind, error, trace)

    def show(self, event: jobs.Event) -> None:
        """Shows one event. Called from one thread."""
        if isinstance(event, jobs.RunStarted):
            work_begins()
        if isinstance(event, jobs.ItemDone):
            self.output = event.output
        if self._json and not self._too_soon(event):
            self._result(json.dumps(event.to_json(), allow_nan=False))
        if self._screen.shown:
            self._dashboard.show(event)
        match event:
            case jobs.ItemFailed():
                if self._verbose and event.cause is not None:
                    self._screen.line(printable_lines("".join(traceback.format_exception(event.cause)).rstrip()))
                self._complain("error", event.input, event.error)
            case jobs.DeviceLost():
                self._warn(f"{event.device} is lost ({event.error}); others do what it had not begun")
            case jobs.Notice() if not self._quiet:
                self._complain("warning", event.input, event.message)
            case jobs.RunStarted(vae_name=str(name)) if not self._json and not self._quiet:
                self._screen.line(printable(f"{event.vae} is the VAE of {name}"))
            case _ if not self._json and not self._quiet:
                self._tell(event)

    def _tell(self, event: jobs.Event) -> None:
        match event:
            case jobs.ItemDone(quality=None):
                self._result(printable(f"{event.input} -> {event.output}"))
            case jobs.ItemDone():
                self._result(printable(f"{event.input} -> {event.output}  {event.quality}"))
            case jobs.ItemSkipped():
                self._result(printable(f"{event.input} -> {event.output}  skipped: {event.reason}"))
            case jobs.ItemPlanned():
                exists = "  (exists; made again if it is outdated)" if event.exists else ""
                if event.state is not None:
                    exists = f"  {event.state}" + ("" if event.reason is None else f": {event.reason}")
                self._result(printable(f"{event.input} -> {event.output}{exists}"))
            case ItemVerified(reason=str()):
                self._result(printable(f"{event.input}: {event.state}: {event.reason}"))
            case jobs.RunDone(quality=jobs.Quality()):
                self._result(f"mean of {event.done}  {event.quality}")
        if isinstance(event, jobs.RunDone):
            counts = {name: getattr(event, name) for name in ("done", "planned", "skipped", "failed")}
            told = ", ".join(f"{number} {word}" for word, number in counts.items() if number)
            self._screen.line(f"{told or 'nothing done'} in {event.seconds:.1f} s")
            if self._verbose and event.stages is not None:
                self._screen.line(bottleneck(event.stages))

    def _warn(self, message: str) -> None:
        self._screen.line(f"tvae: warning: {one_line(message)}")

    def _complain(self, word: str, source: Any, message: str) -> None:
        """One line that names the item once, whether or not the message does."""
        where = "" if source.name and source.name in message else printable(f"{source}: ")
        self._screen.line(f"tvae: {word}: {where}{one_line(message)}")

    def _result(self, line: str) -> None:
        """On stdout; above a region on the same screen it must go the way of the region."""
        if self._screen.shown and sys.stdout.isatty():
            self._screen.line(line)
        else:
            tell(line)

    def _too_soon(self, event: jobs.Event) -> bool:
        if not isinstance(event, jobs.Progress):
            self._told = 0.0
            return False
        now = time.monotonic()
        if now - self._told < JSON_SECONDS:
            return True
        self._told = now
        return False
