"""What PyTorch loads when a GPU first computes something: cuDNN, cuBLAS, the code of copies.

It takes some tenths of a second, and Python's lock for hardly any of that: it can be had beside a capture.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

__all__ = ["first_touch"]

_CHANNELS, _SIDE = 64, 16


def first_touch(dtype: torch.dtype, device: torch.device, dims: int) -> None:
    """Convolve a few pixels of this type, in ``dims`` dimensions, and what else every VAE does."""
    last = torch.channels_last if dims == 2 else torch.channels_last_3d
    with torch.cuda.device(device), torch.no_grad():
        x = torch.zeros((1, _CHANNELS, *[_SIDE] * dims), dtype=dtype, device=device).contiguous(memory_format=last)
        weight = torch.zeros((_CHANNELS, _CHANNELS, *[3] * dims), dtype=dtype, device=device)
        convolve = F.conv2d if dims == 2 else F.conv3d
        convolve(x, weight.contiguous(memory_format=last), padding=1)
        rows = torch.cat([x, x], dim=2).transpose(1, -1).contiguous().view(-1, _CHANNELS)
        torch.mm(rows.T, rows)
