"""Nested values as indented ``key  value`` lines, or as JSON: how the commands that only tell things print."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tvae.cli.reporting import printable, tell

__all__ = ["emit", "lines"]


def emit(kind: str, values: Mapping[str, Any], as_json: bool) -> None:
    """On stdout: one object with ``type``, or lines."""
    if as_json:
        tell(json.dumps({"type": kind, **values}, default=str))
    else:
        tell("\n".join(map(printable, lines(values))))


def lines(values: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    """Keys aligned within one level; what is None or empty is left out."""
    shown = {key: value for key, value in values.items() if value is not None and value not in ({}, [], ())}
    width = max((len(key) for key in shown), default=0)
    for key, value in shown.items():
        if isinstance(value, Mapping):
            yield f"{indent}{key}"
            yield from lines(value, indent + "  ")
        elif _is_rows(value):
            yield f"{indent}{key}"
            for row in value:
                yield f"{indent}  " + "  ".join(f"{name}={_text(cell)}" for name, cell in row.items())
        else:
            yield f"{indent}{key.ljust(width)}  {_text(value)}"


def _is_rows(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(row, Mapping) for row in value)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(_text(item) for item in value)
    return str(value)
