"""How long to wait before an item that failed is tried again."""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["MOST_SECONDS", "waits"]

MOST_SECONDS = 60.0
"""Between two tries."""


def waits(retries: int) -> Iterator[float]:
    """Seconds before each further try."""
    return (min(MOST_SECONDS, 2.0**n) for n in range(retries))
