"""A GPU's events where there is no GPU."""

from __future__ import annotations

from typing import Any


class Clock:
    """In the place of a GPU's events, each of which comes a second after the one before."""

    made = 0

    def __init__(self, **_: Any) -> None:
        self.number: int | None = None

    def record(self, _stream: object) -> None:
        Clock.made += 1
        self.number = Clock.made

    def synchronize(self) -> None:
        assert self.number is not None

    def elapsed_time(self, other: Clock) -> float:
        assert self.number is not None
        assert other.number is not None
        return 1e3 * (other.number - self.number)
