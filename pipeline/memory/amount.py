"""Amounts of memory as users write them."""

from __future__ import annotations

import re

from tvae.pipeline.errors import UsageError

__all__ = ["parse_size"]

_UNITS = {"": 1, "b": 1, **{f"{p}b": 1000 ** (n + 1) for n, p in enumerate("kmgt")}}
_UNITS |= {f"{p}ib": 1024 ** (n + 1) for n, p in enumerate("kmgt")}


def parse_size(text: str | int) -> int:
    """``8GiB`` (1024³ each), ``8GB`` (1000³), ``500 MiB``, or a number of bytes. Raises UsageError."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", str(text))
    unit = _UNITS.get(found[2].lower()) if found else None
    if found is None or unit is None:
        raise UsageError(f"'{text}' is not an amount of memory; write 8GiB, 8GB or 500MiB")
    size = int(float(found[1]) * unit)
    if size < 1:
        raise UsageError(f"a budget of {text} is too small; give at least 1 byte")
    return size
