"""Lists of inputs with options of their own: a JSON object a line, such as ``{"file": "a.png", "size": "512x512"}``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tvae.pipeline.files.checked import parse_json, read_bytes, text_in

__all__ = ["ListedItem", "OwnOptions", "items_in"]

FILE = "file"
"""The key that names the input."""
ListedItem = tuple[str, dict[str, Any]]
"""Its name and its options."""


def items_in(path: Path, most_bytes: int) -> Iterator[tuple[int, ListedItem]]:
    """Each object with the number of its line, from 1. Blank lines are left out.

    Raises OSError where the file cannot be read, and ValueError, which names the line, for what is no such object.
    """
    for number, line in enumerate(text_in(read_bytes(path, most_bytes)).split("\n"), 1):
        if not line.strip():
            continue
        try:
            found = parse_json(line.encode())
        except ValueError as error:
            raise ValueError(f"line {number} is no JSON: {error}") from error
        name = found.get(FILE) if isinstance(found, dict) else None
        if not isinstance(name, str) or not name or "\0" in name:
            raise ValueError(f'line {number} names no input; write {{"file": "a.png"}}, with options beside it')
        yield number, (name, {key: value for key, value in found.items() if key != FILE})


class OwnOptions:
    """Numbers for sets of options: those that are equal have one."""

    def __init__(self, first: int) -> None:
        self._first = first
        self._numbers: dict[str, int] = {}

    def number(self, options: dict[str, Any]) -> tuple[int, bool]:
        """And whether it is new."""
        text = json.dumps(options, sort_keys=True)
        new = text not in self._numbers
        return self._numbers.setdefault(text, self._first + len(self._numbers)), new
