"""What a process says when a library crashes in it: where all of its threads were."""

from __future__ import annotations

import contextlib
import faulthandler

__all__ = ["tells_of_crashes"]


def tells_of_crashes() -> None:
    """From now on, on stderr, beside what the system says. It would end without a word of Python's."""
    with contextlib.suppress(OSError, RuntimeError, ValueError, AttributeError):  # stderr is closed, or no file
        faulthandler.enable()
