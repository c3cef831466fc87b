"""What a command is at, in one line on stderr that is written over and over. Only a terminal gets it."""

from __future__ import annotations

import shutil
import sys
import time

from tvae.cli.reporting import printable, unheard

__all__ = ["StatusLine"]

SECONDS = 0.1
"""Between two lines of ``often``."""


class StatusLine:
    """The line of one command; leaving the block takes it away. shown: false with ``--quiet``, ``--no-progress`` or
    ``--json``."""

    def __init__(self, *, shown: bool) -> None:
        self._shown = shown and sys.stderr.isatty()
        self._there, self._next = False, 0.0

    def __enter__(self) -> StatusLine:
        return self

    def __exit__(self, *error: object) -> None:
        self.clear()

    def show(self, words: str) -> None:
        """In the place of what was there, as much as fits into one line."""
        if not self._shown:
            return
        from rich.cells import set_cell_size

        told = printable(words)
        width = shutil.get_terminal_size().columns - 1  # in the last column some terminals begin a new line
        self._write(told if len(told) < width // 2 else set_cell_size(told, width).rstrip())
        self._there = True

    def often(self, words: str) -> None:
        """The same, of what changes so fast that most of it may be left out."""
        if self._shown and time.monotonic() >= self._next:
            self.show(words)
            self._next = time.monotonic() + SECONDS

    def clear(self) -> None:
        """So that other lines can be told."""
        if self._there:
            self._write("")
            self._there, self._next = False, 0.0

    def _write(self, text: str) -> None:
        with unheard():
            print(f"\r\x1b[2K{text}", end="", file=sys.stderr, flush=True)
