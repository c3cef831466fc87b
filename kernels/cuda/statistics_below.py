"""Statistics that the level below takes where the kernel for Hopper leaves a picture to it."""

from __future__ import annotations

from torch import Tensor

from tvae.kernels.prebuild import asked
from tvae.kernels.registry import implementation

__all__ = ["want_statistics_below"]


def want_statistics_below(y: Tensor) -> None:
    """In a rehearsal: have their kernel built. What the run computes may be too small for the one for Hopper, and of
    what it then needs the level below builds but this."""
    group_stats = implementation("group_stats", "triton") if asked() is not None else None
    if group_stats is not None:
        group_stats(y)
