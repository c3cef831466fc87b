"""Memory layouts of images and clips."""

from __future__ import annotations

import torch

__all__ = ["memory_format"]


def memory_format(ndim: int, channels_last: bool) -> torch.memory_format:
    """The layout of images or clips with channels innermost, the plain one for everything else."""
    if not channels_last or ndim not in (4, 5):
        return torch.contiguous_format
    return torch.channels_last if ndim == 4 else torch.channels_last_3d
