"""What a run does before each strip."""

from __future__ import annotations

from tvae.pipeline.files.pulse import beat
from tvae.pipeline.memory.heap import return_what_is_free

__all__ = ["beat", "return_and_beat"]


def return_and_beat() -> None:
    """Where what is resident counts."""
    return_what_is_free()
    beat()
