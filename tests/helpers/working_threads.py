"""Threads of tvae that do something for a run, so that none may be left when it has ended."""

from __future__ import annotations

import threading

__all__ = ["working_threads"]

_RESTING = ("tvae-deadlines", "tvae-device-")
"""The first ends by itself some seconds after its last work; the others belong to objects that share calls."""


def working_threads() -> list[str]:
    """The names of those that live."""
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name.startswith("tvae-") and not name.startswith(_RESTING)]
