"""What PyTorch loads when a GPU first computes something: cuDNN, cuBLAS, the code of copies.

It takes some tenths of a second, and Python's lock for hardly any of that: it can be had beside a capture. Memory is
counted after it: on an H200 libraries take 260 MiB of the device.
"""

from __future__ import annotations

import threading

import torch
import torch.nn.functional as F

__all__ = ["load_libraries"]

_CHANNELS, _SIDE = 64, 16
_loaded: set[tuple[int | None, int]] = set()
_one_at_a_time = threading.Lock()


def load_libraries(dtype: torch.dtype, device: torch.device, dims: int) -> None:
    """Compute something in ``dims`` dimensions, unless it was done on this CUDA device before."""
    with _one_at_a_time:
        if (device.index, dims) not in _loaded:
            _touch(dtype, device, dims)
            _loaded.add((device.index, dims))


def _touch(dtype: torch.dtype, device: torch.device, dims: int) -> None:
    """Convolve a few pixels of this type, and what else every VAE does."""
    last = torch.channels_last if dims == 2 else torch.channels_last_3d
    with torch.cuda.device(device), torch.no_grad():
        x = torch.zeros((1, _CHANNELS, *[_SIDE] * dims), dtype=dtype, device=device).contiguous(memory_format=last)
        weight = torch.zeros((_CHANNELS, _CHANNELS, *[3] * dims), dtype=dtype, device=device)
        convolve = F.conv2d if dims == 2 else F.conv3d
        convolve(x, weight.contiguous(memory_format=last), padding=1)
        rows = torch.cat([x, x], dim=2).transpose(1, -1).contiguous().view(-1, _CHANNELS)
        torch.mm(rows.T, rows)
        torch.cuda.synchronize(device)
