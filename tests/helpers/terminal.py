"""A terminal as far as progress needs one: what stands on it after some output, and whether its cursor is shown."""

from __future__ import annotations

import re

__all__ = ["Terminal"]

_PIECES = re.compile(r"\x1b\[(\??[0-9;]*)([A-Za-z])|([\r\n])|([^\x1b\r\n]+)")


class Terminal:
    """Lines that scroll out of sight stay, as they do above a terminal. Knows no other sequences than it checks for."""

    def __init__(self, columns: int) -> None:
        self._columns, self._row, self._column = columns, 0, 0
        self._rows: list[str] = [""]
        self.cursor_shown = True

    def feed(self, text: str) -> None:
        """What a program has written."""
        at = 0
        while at < len(text):
            match = _PIECES.match(text, at)
            assert match is not None, f"unknown output: {text[at : at + 20]!r}"
            at = match.end()
            numbers, letter, end, plain = match.groups()
            if letter is not None:
                self._control(numbers, letter)
            elif end == "\r":
                self._column = 0
            elif end == "\n":  # terminals are set to return then, too
                self._next_row()
                self._column = 0
            else:
                self._write(plain)

    def _control(self, numbers: str, letter: str) -> None:
        if letter == "m":
            return
        if (numbers, letter) in (("?25", "l"), ("?25", "h")):
            self.cursor_shown = letter == "h"
        elif letter == "A":
            self._row -= int(numbers or 1)
            assert self._row >= 0, "the cursor left the text"
        elif (numbers, letter) == ("2", "K"):
            self._rows[self._row] = ""
        else:
            raise AssertionError(f"unknown sequence: {numbers}{letter}")

    def _write(self, plain: str) -> None:
        for character in plain:
            if self._column == self._columns:
                self._next_row()
                self._column = 0
            row = self._rows[self._row].ljust(self._column)
            self._rows[self._row] = row[: self._column] + character + row[self._column + 1 :]
            self._column += 1

    def _next_row(self) -> None:
        self._row += 1
        if self._row == len(self._rows):
            self._rows.append("")

    @property
    def lines(self) -> list[str]:
        """What stands on it, from the top, without blanks at the ends and empty lines."""
        return [row.rstrip() for row in self._rows if row.strip()]
