"""finish_stats: blocks of statistics and a norm's parameters to one affine map per channel, in one small launch."""

from __future__ import annotations

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from tvae.kernels.registry import Unsupported
from tvae.kernels.triton.device import sqrt_wide, three_sums
from tvae.kernels.triton.launch import INTERPRETED, check_vector
from tvae.kernels.triton.repeated import Repeated
from tvae.kernels.triton.sizes import power_of_2

__all__ = ["finish_stats"]

TILE = 4096
"""Elements [blocks, channels of a group] of one step of a program."""
NARROWEST = 16
"""Channels of a group: narrower ones share a kernel with these, which takes a microsecond longer for them."""
WARPS = 8


@triton.jit(do_not_specialize=["samples", "blocks"])
def _finish(
    parts: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    offset: tl.tensor,
    affine: tl.tensor,
    samples: tl.tensor,
    blocks: tl.tensor,
    channels: tl.tensor,
    groups: tl.tensor,
    eps: tl.constexpr,
    BB: tl.constexpr,
    BC: tl.constexpr,
    WEIGHT: tl.constexpr,
    BIAS: tl.constexpr,
    OFFSET: tl.constexpr,
) -> None:
    sample = tl.cast(tl.program_id(0) // groups, tl.int64)
    group = tl.program_id(0) % groups
    size = channels // groups
    inner = tl.arange(0, BC)
    c = group * size + inner
    keep_c = inner < size
    parts += sample * blocks * 3 * channels
    moved = tl.zeros([BC], tl.float64)
    if OFFSET:
        moved = tl.load(offset + c, mask=keep_c, other=0.0).to(tl.float64)
    scale = tl.full([BC], 1.0, tl.float64)
    if WEIGHT:
        scale = tl.load(weight + c, mask=keep_c, other=0.0).to(tl.float64)
    shift = tl.zeros([BC], tl.float64)
    if BIAS:
        shift = tl.load(bias + c, mask=keep_c, other=0.0).to(tl.float64)

    # sums of deviations from one channel's mean: near the group's, so that nothing cancels
    centre = tl.load(parts + channels + group * size)
    if OFFSET:
        centre += tl.load(offset + group * size).to(tl.float64)
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
        d = tl.where(keep, mean + moved[None, :] - centre, 0.0)
        total += count
        first += count * d
        second += m2 + count * d * d
    totals, firsts, seconds = tl.reduce((total, first, second), 0, three_sums)
    n = tl.sum(totals, 0)
    off_centre = tl.sum(firsts, 0) / n
    var = tl.sum(seconds, 0) / n - off_centre * off_centre
    var = tl.where(var < 0.0, 0.0, var)  # of rounding; not a number stays not a number
    rstd = 1.0 / sqrt_wide(var + eps)
    scale *= rstd
    shift += (moved - (centre + off_centre)) * scale
    to = affine + sample * channels + c
    tl.store(to, scale.to(tl.float32), mask=keep_c)
    tl.store(to + tl.cast(samples, tl.int64) * channels, shift.to(tl.float32), mask=keep_c)


def finish_stats(
    parts: Tensor, groups: int, eps: float, weight: Tensor | None, bias: Tensor | None, offset: Tensor | None
) -> Tensor:
    """See ``operations.finish_stats``. In float64, one program for each sample and group."""
    shape, device = parts.shape, parts.device
    if len(shape) != 4 or shape[2] != 3 or parts.dtype != torch.float64:
        raise ValueError(f"statistics are float64 [N, B, 3, C], not {parts.dtype} {list(shape)}")
    channels = shape[3]
    if groups < 1 or channels % groups:
        raise ValueError(f"{channels} channels do not fall into {groups} groups")
    if torch.float64 in [t.dtype for t in (weight, bias, offset) if t is not None]:
        raise Unsupported("float64 parameters, of which the result is float64")
    weight = check_vector("weight", weight, channels, device)
    bias = check_vector("bias", bias, channels, device)
    offset = check_vector("offset", offset, channels, device)
    run = _of_shape(shape, device, groups, float(eps), (weight is not None, bias is not None, offset is not None))
    affine = torch.empty((2, shape[0], channels), dtype=torch.float32, device=device)
    given = [affine if vector is None else vector for vector in (weight, bias, offset)]
    run(parts.contiguous(), *given, affine)
    return affine


@lru_cache(1 << 13)
def _of_shape(
    shape: tuple[int, ...], device: torch.device, groups: int, eps: float, has: tuple[bool, bool, bool]
) -> Repeated:
    """The launch for statistics of this shape. has: is there a weight, a bias, an offset? Raises Unsupported."""
    if device.type != "cuda" and not INTERPRETED:
        raise Unsupported(f"a tensor on {device.type}")
    n, blocks, _, channels = shape
    width = max(NARROWEST, power_of_2(channels // groups))
    if 0 in shape or width > TILE or channels > 1 << 16:
        raise Unsupported(f"{n}x{blocks} blocks, {channels} channels in {groups} groups")
    tile = {"BB": TILE // width, "BC": width}  # whatever the blocks are: one kernel for all sizes of a picture
    options = {"eps": eps, **tile, **dict(zip(("WEIGHT", "BIAS", "OFFSET"), has, strict=True)), "num_warps": WARPS}
    return Repeated(_finish, (n * groups,), (n, blocks, channels, groups), options, device)
