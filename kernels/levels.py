"""The names of the levels, and the check of a table that chooses one for each operation. Imports no torch."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

from tvae.kernels.operations import OPERATIONS

__all__ = ["LEVELS", "check_levels"]

LEVELS = ("native", "script", "compile", "triton", "cuda")
"""From the definition (PyTorch operations) to CUDA C++."""


def check_levels(levels: Mapping[str, str]) -> None:
    """ValueError for the first name that is neither an operation's nor ``default``, or the first unknown level."""
    known = ("default", *OPERATIONS)
    for name, level in levels.items():
        if name not in known:
            hint = _hint(name, known)
            raise ValueError(f"levels names the unknown operation '{name}'{hint} (there are: {', '.join(known)})")
        if level not in LEVELS:
            hint = _hint(level, LEVELS)
            raise ValueError(f"levels.{name} must be one of {', '.join(LEVELS)}, found {level!r}{hint}")


def _hint(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean '{close[0]}'?" if close else ""
