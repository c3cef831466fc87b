"""pad and enlarge: every pixel of the result is one of the source, or nothing; a normalisation comes on the way."""

from __future__ import annotations

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from tvae.kernels.registry import Unsupported
from tvae.kernels.triton.device import silu
from tvae.kernels.triton.launch import (
    FURTHEST,
    Tuning,
    check_place,
    dense_wide,
    device_of,
    empty_last,
    launch,
    pixel_block,
    programs,
    wide_block,
)
from tvae.kernels.triton.sizes import ceil_div

__all__ = ["enlarge", "pad"]

SPREAD = Tuning(tile_bytes=8192, warps=4, per_sm=10**6, stages=1)
_MODES = {"constant": 0, "replicate": 1, "reflect": 2}


@triton.jit
def _source(at: tl.tensor, before: tl.tensor, size: tl.tensor, MODE: tl.constexpr, FACTOR: tl.constexpr) -> tl.tensor:
    """Where a coordinate of the result lies in the source; beyond it where there is nothing."""
    s = at // FACTOR - before
    if MODE == 1:
        s = tl.minimum(tl.maximum(s, 0), size - 1)
    if MODE == 2:
        s = tl.abs(s)
        s = (size - 1) - tl.abs((size - 1) - s)
    return s


@triton.jit(
    do_not_specialize=[
        *("samples", "x_t", "x_h", "x_w", "t", "h", "w"),
        *("before_t", "before_h", "before_w", "blocks", "tiles"),
    ]
)
def _spread(
    x: tl.tensor,
    affine: tl.tensor,
    y: tl.tensor,
    samples: tl.tensor,
    channels: tl.tensor,
    x_t: tl.tensor,
    x_h: tl.tensor,
    x_w: tl.tensor,
    t: tl.tensor,
    h: tl.tensor,
    w: tl.tensor,
    before_t: tl.tensor,
    before_h: tl.tensor,
    before_w: tl.tensor,
    blocks: tl.tensor,
    tiles: tl.tensor,
    x_sample: tl.tensor,
    x_frame: tl.tensor,
    x_row: tl.tensor,
    x_pixel: tl.tensor,
    BP: tl.constexpr,
    BC: tl.constexpr,
    MODE: tl.constexpr,
    FT: tl.constexpr,
    FH: tl.constexpr,
    FW: tl.constexpr,
    NORM: tl.constexpr,
    SILU: tl.constexpr,
) -> None:
    split = tl.cdiv(channels, BC)
    part = tl.program_id(0) // split
    c = (tl.program_id(0) % split) * BC + tl.arange(0, BC)
    sample = tl.cast(part // blocks, tl.int64)
    pixels = t * h * w
    x += sample * x_sample
    y += sample * pixels * channels
    rows = tl.arange(0, BP)
    c_keep = c < channels
    scale = tl.zeros([BC], tl.float32)
    shift = tl.zeros([BC], tl.float32)
    if NORM:
        affine += sample * channels
        scale = tl.load(affine + c, mask=c_keep, other=0.0)
        shift = tl.load(affine + tl.cast(samples, tl.int64) * channels + c, mask=c_keep, other=0.0)
    for tile in range(part % blocks, tiles, blocks):
        at = tile * BP + rows
        row = at // w
        sw = _source(at - row * w, before_w, x_w, MODE, FW)
        sh = _source(row % h, before_h, x_h, MODE, FH)
        st = _source(row // h, before_t, x_t, MODE, FT)
        inside = at < pixels
        there = inside & (sw >= 0) & (sw < x_w) & (sh >= 0) & (sh < x_h) & (st >= 0) & (st < x_t)
        source = tl.cast(st, tl.int64) * x_frame + tl.cast(sh, tl.int64) * x_row + tl.cast(sw, tl.int64) * x_pixel
        keep = inside[:, None] & c_keep[None, :]
        take = there[:, None] & c_keep[None, :]
        v = tl.load(x + (source[:, None] + c[None, :]), mask=take, other=0.0)
        if NORM:
            v = v.to(tl.float32) * scale[None, :] + shift[None, :]
            if SILU:
                v = silu(v)
            v = tl.where(take, v, 0.0)
        to = tl.cast(at, tl.int64) * channels
        tl.store(y + (to[:, None] + c[None, :]), v.to(y.dtype.element_ty), mask=keep)


def pad(x: Tensor, amounts: Sequence[int], mode: str, affine: Tensor | None, act: str | None) -> Tensor:
    """See ``operations.pad``. With ``affine`` in float32, rounded once; y is dense with channels innermost."""
    if mode not in _MODES:
        raise ValueError(f"the modes are {', '.join(_MODES)}, not '{mode}'")
    if act not in (None, "silu"):
        raise ValueError(f"the activations are None and 'silu', not '{act}'")
    spatial, pairs = list(x.shape[2:]), [(amounts[i], amounts[i + 1]) for i in range(0, len(amounts), 2)]
    if len(pairs) > len(spatial) or (mode != "constant" and min(amounts, default=0) < 0):
        raise Unsupported("pads other dimensions than the spatial ones, or crops")
    pairs += [(0, 0)] * (len(spatial) - len(pairs))
    pairs.reverse()
    if mode == "reflect" and any(max(pair) >= n for pair, n in zip(pairs, spatial, strict=True)):
        raise ValueError(f"reflection reaches beyond {list(x.shape)}")
    if affine is not None and affine.shape != (2, *x.shape[:2]):
        raise ValueError(f"the affine map is {list(affine.shape)}, not [2, {x.shape[0]}, {x.shape[1]}]")
    if affine is not None and (affine.device != x.device or not affine.dtype.is_floating_point):
        raise Unsupported(f"an affine map of {affine.dtype} on {affine.device}")
    out = [n + before + after for n, (before, after) in zip(spatial, pairs, strict=True)]
    return _launch(x, out, [before for before, _ in pairs], [1] * len(out), mode, affine, act)


def enlarge(x: Tensor, factors: Sequence[int]) -> Tensor:
    """See ``operations.enlarge``; y is dense with channels innermost."""
    if len(factors) != x.ndim - 2 or min(factors) < 1:
        raise ValueError(f"{len(factors)} factors {list(factors)} for {x.ndim - 2} spatial dimensions")
    out = [n * factor for n, factor in zip(x.shape[2:], factors, strict=True)]
    return _launch(x, out, [0] * len(out), list(factors), "constant", None, None)


def _launch(
    x: Tensor, out: list[int], before: list[int], factors: list[int], mode: str, affine: Tensor | None, act: str | None
) -> Tensor:
    check_place(x)
    missing = 3 - len(out)
    if missing < 0 or 0 in x.shape or min(out, default=0) < 1 or (x.stride(1) != 1 and x.shape[1] > 1):
        raise Unsupported("more than three spatial dimensions, none of them, or channels that are not innermost")
    y = empty_last(x, (*x.shape[:2], *out))
    sizes, shape = [*[1] * missing, *x.shape[2:]], [*[1] * missing, *out]
    strides = [*[0] * missing, *x.stride()[2:]]
    before, factors = [*[0] * missing, *before], [*[1] * missing, *factors]
    pixels, channels = shape[0] * shape[1] * shape[2], x.shape[1]
    block = wide_block(channels)
    height = pixel_block(SPREAD, block, x.element_size())
    if pixels + height > FURTHEST:
        raise Unsupported(f"{pixels} pixels")
    split, tiles = ceil_div(channels, block), ceil_div(pixels, height)
    blocks = programs(x.device, SPREAD, x.shape[0] * split, tiles, tiles)
    with device_of(x):
        launch(
            _spread,
            (x.shape[0] * blocks * split,),
            x,
            x if affine is None else dense_wide(affine),
            y,
            x.shape[0],
            channels,
            *sizes,
            *shape,
            *before,
            blocks,
            tiles,
            x.stride(0) if x.shape[0] > 1 else 0,
            *strides,
            BP=height,
            BC=block,
            MODE=_MODES[mode],
            FT=factors[0],
            FH=factors[1],
            FW=factors[2],
            NORM=affine is not None,
            SILU=act == "silu",
            num_warps=SPREAD.warps,
        )
    return y
