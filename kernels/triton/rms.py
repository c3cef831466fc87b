"""rms_norm_act: normalisation over each pixel's channels, weights and activation, in one pass."""

from __future__ import annotations

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from tvae.kernels.layout import channels_last
from tvae.kernels.registry import Unsupported
from tvae.kernels.triton.cut import cut_of
from tvae.kernels.triton.device import silu
from tvae.kernels.triton.launch import Tuning, check_kind, check_vector, map_of
from tvae.kernels.triton.repeated import Repeated
from tvae.kernels.triton.sizes import power_of_2

__all__ = ["rms_norm_act"]

RMS = Tuning(tile_bytes=8192, warps=8, per_sm=32, stages=1)
MOST_CHANNELS = 8192
"""Of a pixel: they all lie in one tile."""


@triton.jit(do_not_specialize=["outer", "pixels", "blocks", "tiles"])
def _rms(
    x: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    offset: tl.tensor,
    y: tl.tensor,
    eps: tl.tensor,
    outer: tl.tensor,
    pixels: tl.tensor,
    channels: tl.tensor,
    blocks: tl.tensor,
    tiles: tl.tensor,
    x_sample: tl.tensor,
    x_outer: tl.tensor,
    x_pixel: tl.tensor,
    y_sample: tl.tensor,
    y_outer: tl.tensor,
    y_pixel: tl.tensor,
    BP: tl.constexpr,
    BC: tl.constexpr,
    NORMALIZE: tl.constexpr,
    WEIGHT: tl.constexpr,
    BIAS: tl.constexpr,
    OFFSET: tl.constexpr,
    SILU: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    run = tl.program_id(0) // blocks
    block = tl.program_id(0) % blocks
    sample = tl.cast(run // outer, tl.int64)
    row = tl.cast(run % outer, tl.int64)
    x += sample * x_sample + row * x_outer
    y += sample * y_sample + row * y_outer
    c = tl.arange(0, BC)
    rows = tl.arange(0, BP)
    x_in = rows[:, None] * x_pixel + c[None, :]
    y_in = rows[:, None] * y_pixel + c[None, :]
    c_keep = c < channels
    w = tl.zeros([BC], tl.float32)
    b = tl.zeros([BC], tl.float32)
    if WEIGHT:
        w = tl.load(weight + c, mask=c_keep, other=0.0).to(tl.float32)
    if BIAS:
        b = tl.load(bias + c, mask=c_keep, other=0.0).to(tl.float32)
    before = tl.zeros([BC], tl.float32)
    if OFFSET:
        before = tl.load(offset + c, mask=c_keep, other=0.0).to(tl.float32)
    for tile in tl.range(block, tiles, blocks, num_stages=STAGES):
        base = tl.cast(tile, tl.int64) * BP
        keep = (tile * BP + rows < pixels)[:, None] & c_keep[None, :]
        v = tl.load(x + base * x_pixel + x_in, mask=keep, other=0.0).to(tl.float32)
        if OFFSET:
            v += before[None, :]
        square = tl.sum(v * v, 1)
        if NORMALIZE:
            size = tl.sqrt_rn(square)
            size = tl.where(size < eps, eps, size)  # not a number stays not a number
            factor = tl.sqrt_rn(tl.cast(channels, tl.float32)) / size
        else:
            factor = 1.0 / tl.sqrt_rn(square / channels + eps)
        v = v * factor[:, None]
        if WEIGHT:
            v = v * w[None, :]
        if BIAS:
            v = v + b[None, :]
        if SILU:
            v = silu(v)
        tl.store(y + base * y_pixel + y_in, v.to(y.dtype.element_ty), mask=keep)


def rms_norm_act(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    form: str,
    act: str | None,
    offset: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """See ``operations.rms_norm_act``. In float32, rounded once, after ``act``; a new y has its channels innermost."""
    if form not in ("normalize", "rms"):
        raise ValueError(f"rms_norm_act has the forms 'normalize' and 'rms', not '{form}'")
    if act not in (None, "silu"):
        raise ValueError(f"the activations are None and 'silu', not '{act}'")
    shape, dtype, device = x.shape, x.dtype, x.device
    if out is not None and (out.shape != shape or out.dtype != dtype or out.device != device):
        raise Unsupported("tensors of unlike shape, type or device")
    channels = shape[1] if len(shape) > 2 else 0
    to = None if out is None else out.stride()
    has = weight is not None, bias is not None, offset is not None
    strides, run = _of_layout(shape, x.stride(), to, dtype, device, float(eps), (form, act), has, RMS)
    weight = check_vector("weight", weight, channels, device)
    bias = check_vector("bias", bias, channels, device)
    offset = check_vector("offset", offset, channels, device)
    y = torch.empty_strided(shape, strides, dtype=dtype, device=device) if out is None else out
    run(x, *(x if vector is None else vector for vector in (weight, bias, offset)), y)
    return y


@lru_cache(1 << 13)
def _of_layout(
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    to: tuple[int, ...] | None,
    dtype: torch.dtype,
    device: torch.device,
    eps: float,
    kind: tuple[str, str | None],
    has: tuple[bool, bool, bool],
    tuning: Tuning,
) -> tuple[tuple[int, ...], Repeated]:
    """The strides of y, and its launch, for x of this layout. to: those of y, where it is given; kind: form and
    activation; has: is there a weight, a bias, an offset? Raises Unsupported."""
    check_kind(dtype, device)
    dense = to or channels_last(shape)
    whole, (form, act) = map_of(shape, strides, dense), kind
    if whole.channels > MOST_CHANNELS:
        raise Unsupported(f"{whole.channels} channels")
    options = dict(zip(("WEIGHT", "BIAS", "OFFSET"), has, strict=True))
    options |= {"NORMALIZE": form == "normalize", "SILU": act == "silu"}
    cut = cut_of(whole, power_of_2(whole.channels), dtype, device, tuning, **options)
    return dense, Repeated(_rms, cut.grid, (eps, *cut.numbers), cut.options, device)
