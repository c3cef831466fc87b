"""Convolutions of 3x3 taps in space on Hopper's tensor cores that add, and take the statistics of what they have made.

The kernel is in ``hopper_conv.cu``. It keeps the pixels of a tile in shared memory for all nine taps, so that it reads
less than a matrix product of the same size, and writes a tile while it computes the next one.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache, lru_cache

import torch
from torch import Tensor

from tvae.kernels.cuda import program
from tvae.kernels.cuda.hopper_cut import SCATTERED, Form, Work, cut_for, takes
from tvae.kernels.cuda.launch import StructLaunch, card, load, no_card
from tvae.kernels.prebuild import asked, wait_for
from tvae.kernels.registry import Failed, Unsupported

__all__ = ["Idle", "conv3d", "conv_add", "down_conv", "enlarge_conv", "missing", "takes"]

_HOPPER = (9, 0)
_THREADS = 384
_BUSY, _BUSY_CLIP = 0.45, 0.85
"""Shares of the multiprocessors' time that the tiles of a picture, and of a clip, must fill: with less, cuDNN's smaller
tiles are faster (H200). Of a picture they are from 0.63 down, by up to 4 % of a run at 0.48; but they take 20 ms more
when a size first comes, since cuDNN chooses anew for every convolution of every size."""


class Idle(Unsupported):
    """The maps are too small to keep the multiprocessors busy."""


@cache
def missing() -> str | None:
    """Why the kernel cannot run on this machine, or None."""
    reason = no_card()
    if reason is None and torch.cuda.get_device_capability() != _HOPPER:
        reason = "not a GPU of compute capability 9.0"
    return reason or program.missing()


def conv_add(
    x: Tensor,
    weight: Tensor,
    residual: Tensor | None,
    bias: Tensor | None,
    pads: Sequence[int],
    out: Tensor | None,
    stats: bool,
) -> tuple[Tensor, Tensor | None]:
    """See ``operations.conv_add``; the sum is taken in float32 and rounded once. The result has channels innermost.

    Raises Unsupported before anything is written.
    """
    return _convolve(x, weight, residual, bias, (*pads, 0, 0), out, stats, _BUSY)


def enlarge_conv(
    x: Tensor, taps: Tensor, bias: Tensor | None, pads: Sequence[int], out: Tensor | None, stats: bool
) -> tuple[Tensor, Tensor | None]:
    """See ``operations.enlarge_conv``; summed in float32 and rounded once. The result has channels innermost.

    Raises Unsupported before anything is written.
    """
    left, right, top, bottom = pads
    size = 2 * (x.shape[2] + top + bottom - 2), 2 * (x.shape[3] + left + right - 2)
    if min(size) < 1:
        raise Unsupported(f"a map {list(x.shape)}")
    y = out
    if y is None:
        shape = x.shape[0], taps.shape[0], *size
        y = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    places = _by_place(y)
    return y, _convolve(x, taps, None, bias, (*pads, 0, 0), places, stats, _BUSY, "enlarge")[1]


def down_conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, pads: Sequence[int], out: Tensor | None, stats: bool
) -> tuple[Tensor, Tensor | None]:
    """See ``operations.down_conv``; summed in float32 and rounded once. The result has channels innermost.

    Raises Unsupported before anything is written.
    """
    right, bottom = pads
    return _convolve(_by_place(x), weight, None, bias, (0, right, 0, bottom, 0, 0), out, stats, _BUSY, "down")


def _by_place(y: Tensor) -> Tensor:
    """The pixels of [N, C, 2H, 2W] by their places in squares of 2x2, as [N, 2C, 2, H, W]: channels of a left and a
    right one; upper and lower rows."""
    n, c, h, w = y.shape
    if h % 2 or w % 2:  # told without PyTorch, which takes a trace of all its frames: tens of milliseconds
        raise Unsupported("a map whose sides are odd")
    try:
        return y.movedim(1, 3).view(n, h // 2, 2, w // 2, 2 * c).permute(0, 4, 2, 1, 3)
    except RuntimeError:
        raise Unsupported("a map whose columns lie apart") from None


def conv3d(x: Tensor, weight: Tensor, bias: Tensor | None, padding: Sequence[int]) -> Tensor:
    """See ``operations.conv3d``, with steps and groups of one; summed in float32, rounded once. Raises Unsupported."""
    if x.ndim != 5:
        raise Unsupported(f"a clip {list(x.shape)}")
    front, top, left = padding
    return _convolve(x, weight, None, bias, (left, left, top, top, front, front), None, False, _BUSY_CLIP)[0]


def _convolve(
    x: Tensor,
    weight: Tensor,
    residual: Tensor | None,
    bias: Tensor | None,
    pads: Sequence[int],
    out: Tensor | None,
    stats: bool,
    busy: float,
    form: Form = "same",
) -> tuple[Tensor, Tensor | None]:
    """conv_add of maps [N, C, H, W] or [N, C, T, H, W] that fill so much of the multiprocessors' time; or enlarge_conv,
    ``out`` being given by place; or down_conv, x being given by place."""
    reason = missing()
    if reason:
        raise Failed(reason)
    seen = tuple([None if t is None else (t.shape, t.stride(), t.dtype, t.device) for t in (x, weight, residual, out)])
    of_bias = None if bias is None else (bias.dtype, bias.device)
    cut = cut_for(seen, of_bias, tuple(pads), stats, busy, form)
    if isinstance(cut, str):
        raise Unsupported(cut)
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, weight, residual, out)):
        raise Unsupported("no gradients at this level")
    here = asked()
    if here is None and cut.idle:
        height, width = cut.made[0][-2:]
        raise Idle(f"{height}x{width} of {weight.shape[0]} channels leave multiprocessors idle")
    y = torch.empty_strided(*cut.made, dtype=x.dtype, device=x.device) if out is None else out
    other = y if residual is None else residual  # which the kernel does not look at then
    places = x.data_ptr(), weight.data_ptr(), other.data_ptr(), y.data_ptr()
    if (places[0] | places[1] | places[2] | places[3]) % 16:
        raise Unsupported(SCATTERED)
    parts = torch.empty(cut.parts, dtype=torch.float64, device=x.device) if stats else None
    if here is not None:
        here.want(cut.build, lambda: load("conv", *cut.build), alone=True)
        return y, parts
    wait_for(cut.build)
    launch = _launcher(cut.build, cut.blocks)
    work, shift = Work.from_buffer_copy(cut.work), None
    if bias is not None:
        work.float_bias = bias.dtype != x.dtype
        shift = (bias.float() if work.float_bias else bias).contiguous()
        work.bias = shift.data_ptr()
    if parts is not None:
        work.parts = parts.data_ptr()
    maps = [box.at(place) for place, box in zip(places, cut.boxes, strict=True)]
    launch(maps[0].getPtr(), maps[1].getPtr(), maps[2].getPtr(), maps[3].getPtr(), ctypes.addressof(work))
    return y, parts


@lru_cache(1 << 10)
def _launcher(build: tuple[str, tuple[tuple[str, int], ...], int], blocks: int) -> StructLaunch:
    """The kernel with its grid. Raises Unsupported where it cannot be built."""
    return StructLaunch(load("conv", *build), blocks, _THREADS, card(build[2]).shared_block, build[2])
