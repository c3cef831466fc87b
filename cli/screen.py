"""The terminal of a run: a region at its bottom that is drawn again and again, and lines above it.

A thread of its own draws, so that threads that work do not wait for a terminal; what is told between two drawings
comes at once with the next. Where no region is shown, lines are printed when they are told.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from queue import Empty, Full, Queue
from types import TracebackType
from typing import Self

from rich.console import Console, RenderableType
from rich.live import Live

from tvae.cli.reporting import unheard

__all__ = ["Screen"]

DRAW_SECONDS = 0.2
"""From one drawing to the next."""
WAITING = 10_000
"""Lines that wait for the terminal at most; then whoever tells more waits for it, too."""


class Screen:
    """A context manager. region: asked for its lines whenever it is drawn, by another thread. shown: is it?"""

    def __init__(self, console: Console, region: RenderableType, *, shown: bool) -> None:
        self.shown, self._console = shown, console
        # redirecting stdout would send results to stderr while the region is shown
        self._live = Live(
            region, console=console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=True
        )
        self._lines: Queue[str] = Queue(WAITING)
        self._ended = threading.Event()
        self._fault: BaseException | None = None
        self._thread = threading.Thread(target=self._draw, name="tvae-draws", daemon=True)

    def __enter__(self) -> Self:
        if self.shown:
            self._live.start(refresh=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.shown:
            return
        try:
            self._ended.set()
            self._thread.join()
            if self._fault is None:
                self._print_lines()
        finally:  # another Ctrl-C meanwhile leaves the terminal as it was, too
            self._live.stop()

    def line(self, text: str) -> None:
        """One or more lines, above the region. Raises what the terminal said to earlier ones."""
        if not self.shown:
            with unheard():
                self._console.print(text)
            return
        while True:
            if self._fault is not None:
                raise self._fault
            try:
                return self._lines.put(text, timeout=DRAW_SECONDS)
            except Full:
                continue

    def _draw(self) -> None:
        try:
            while not self._ended.wait(DRAW_SECONDS):
                if not self._print_lines():
                    self._live.refresh()
        except BaseException as error:  # whatever it is, the thread that tells lines raises it
            self._fault = error

    def _print_lines(self) -> bool:
        """All that wait, at once, which draws the region, too; were there any?"""
        told = [*self._waiting()]
        if told:
            self._console.print("\n".join(told))
        return bool(told)

    def _waiting(self) -> Iterator[str]:
        while True:
            try:
                yield self._lines.get_nowait()
            except Empty:
                return
