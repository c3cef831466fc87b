"""A module of research code that other functions import where they need it."""

from __future__ import annotations

from torch import Tensor

__all__ = ["GAIN", "SCALE", "SHARE", "reset", "scaled"]

GAIN, SHARE, SCALE = 1.0, 1.0, 1.0


def scaled(h: Tensor) -> Tensor:
    """Times a number that may be another in the next call."""
    return h * SCALE


def reset(_scaled=scaled) -> None:  # type: ignore[no-untyped-def]
    """All as it was."""
    globals().update(GAIN=1.0, SHARE=1.0, SCALE=1.0, scaled=_scaled)
