"""How a process ended, in words."""

from __future__ import annotations

import signal

__all__ = ["end_of"]


def end_of(code: int) -> str:
    """Of its exit status as ``subprocess`` tells it: ``code 3``, or the signal that ended it, such as ``SIGKILL``."""
    if code >= 0:
        return f"code {code:#x}" if code > 255 else f"code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
