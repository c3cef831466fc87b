"""merge_stats: blocks of statistics to one block, in one small launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tvae.kernels.registry import Unsupported
from tvae.kernels.triton.device import three_sums
from tvae.kernels.triton.launch import INTERPRETED, device_of, launch

__all__ = ["merge_stats"]

BLOCKS, CHANNELS, WARPS = 256, 16, 8
"""What a program takes at a time."""


@triton.jit(do_not_specialize=["blocks"])
def _merge(
    parts: tl.tensor, out: tl.tensor, blocks: tl.tensor, channels: tl.tensor, BB: tl.constexpr, BC: tl.constexpr
) -> None:
    sample = tl.cast(tl.program_id(0), tl.int64)
    c = tl.program_id(1) * BC + tl.arange(0, BC)
    keep_c = c < channels
    parts += sample * blocks * 3 * channels
    centre = tl.load(parts + channels + c, mask=keep_c, other=0.0)  # near the mean of all, so that nothing cancels
    total = tl.zeros([BB, BC], tl.float64)
    first = tl.zeros([BB, BC], tl.float64)
    second = tl.zeros([BB, BC], tl.float64)
    rows = tl.arange(0, BB)
    for start in range(0, blocks, BB):
        at = parts + tl.cast(start, tl.int64) * 3 * channels + rows[:, None] * (3 * channels) + c[None, :]
        keep = (start + rows < blocks)[:, None] & keep_c[None, :]
        count = tl.load(at, mask=keep, other=0.0)
        mean = tl.load(at + channels, mask=keep, other=0.0)
        m2 = tl.load(at + 2 * channels, mask=keep, other=0.0)
        d = tl.where(count > 0.0, mean - centre[None, :], 0.0)
        total += count
        first += count * d
        second += m2 + count * d * d
    n, off, squares = tl.reduce((total, first, second), 0, three_sums)
    off = off / tl.where(keep_c, n, 1.0)
    squares -= n * off * off
    squares = tl.where(squares < 0.0, 0.0, squares)  # of rounding; not a number stays not a number
    to = out + sample * 3 * channels + c
    tl.store(to, n, mask=keep_c)
    tl.store(to + channels, centre + off, mask=keep_c)
    tl.store(to + 2 * channels, squares, mask=keep_c)


def merge_stats(parts: Tensor) -> Tensor:
    """See ``operations.merge_stats``."""
    if parts.ndim != 4 or parts.shape[2] != 3 or parts.dtype != torch.float64:
        raise ValueError(f"statistics are float64 [N, B, 3, C], not {parts.dtype} {list(parts.shape)}")
    if not parts.is_cuda and not INTERPRETED:
        raise Unsupported(f"a tensor on {parts.device.type}")
    n, blocks, _, channels = parts.shape
    if parts.numel() == 0 or channels > 1 << 16:
        raise Unsupported(f"{n}x{blocks} blocks, {channels} channels")
    out = torch.empty((n, 1, 3, channels), dtype=torch.float64, device=parts.device)
    with device_of(parts):
        grid = n, triton.cdiv(channels, CHANNELS)
        launch(_merge, grid, parts.contiguous(), out, blocks, channels, BB=BLOCKS, BC=CHANNELS, num_warps=WARPS)
    return out
