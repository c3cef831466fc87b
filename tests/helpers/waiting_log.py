"""What threads of a test did, and a way to wait for it."""

from __future__ import annotations

import threading

__all__ = ["LONG", "Log"]

LONG = 20.0
"""Seconds after which a test does not wait any more."""


class Log:
    """What was done, and a way to wait for it."""

    def __init__(self) -> None:
        self.said = list[str]()
        self._changed = threading.Condition()

    def say(self, text: str) -> None:
        with self._changed:
            self.said.append(text)
            self._changed.notify_all()

    def wait(self, text: str) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: text in self.said, LONG)
