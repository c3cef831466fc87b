"""Convolutions of 3x3 taps in space on Hopper's tensor cores that add, and take the statistics of what they have made.

The kernel is in ``hopper_conv.cu``. It keeps the pixels of a tile in shared memory for all nine taps, so that it reads
less than a matrix product of the same size, and writes a tile while it computes the next one.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor

from tvae.kernels.cuda import program
from tvae.kernels.cuda.boxes import boxes
from tvae.kernels.cuda.launch import card, launch, load, no_card
from tvae.kernels.cuda.maps import ELEMENTS, channels_last
from tvae.kernels.prebuild import asked, wait_for
from tvae.kernels.registry import Failed, Unsupported

__all__ = ["conv3d", "conv_add", "down_conv", "enlarge_conv", "missing", "takes"]

_HOPPER = (9, 0)
_TILE = 16
"""Rows and columns of a block's tile."""
_ROWS = 2
"""Rows of a tile that a warp writes."""
_DEEP, _WIDE = 64, 128
"""Channels of x that are loaded at once, and of y that a block computes: these divide what there is."""
_THREADS = 384
_BUSY, _BUSY_CLIP = 0.63, 0.85
"""Shares of the multiprocessors' time that the tiles of a picture, and of a clip, must fill: with less, cuDNN's smaller
tiles are faster (H200)."""


Form = Literal["same", "down", "enlarge"]
"""Of a convolution: in steps of one, of two, or of a picture enlarged twice."""


class _Work(ctypes.Structure):
    """As in the source."""

    _fields_ = (
        *[(name, ctypes.c_void_p) for name in ("bias", "parts")],
        *[
            (name, ctypes.c_int)
            for name in ("samples", "frames", "height", "width", "channels", "wide", "deep", "times")
        ],
        *[(name, ctypes.c_int) for name in ("left", "top", "front", "float_bias")],
    )


@cache
def missing() -> str | None:
    """Why the kernel cannot run on this machine, or None."""
    reason = no_card()
    if reason is None and torch.cuda.get_device_capability() != _HOPPER:
        reason = "not a GPU of compute capability 9.0"
    return reason or program.missing()


def takes(outer: int, inner: int, kernel: int) -> bool:
    """Is it for convolutions of so many channels?"""
    return kernel == 3 and inner % _DEEP == 0 and outer % _WIDE == 0


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
    rest, into = (None if t is None else t.unsqueeze(2) for t in (residual, out))
    y, parts = _convolve(x.unsqueeze(2), weight.unsqueeze(2), rest, bias, (*pads, 0, 0), into, stats, _BUSY)
    return y.squeeze(2) if out is None else out, parts


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
    given = x.unsqueeze(2), taps.unsqueeze(2), None, bias, (*pads, 0, 0), places, stats, _BUSY
    return y, _convolve(*given, "enlarge")[1]


def down_conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, pads: Sequence[int], out: Tensor | None, stats: bool
) -> tuple[Tensor, Tensor | None]:
    """See ``operations.down_conv``; summed in float32 and rounded once. The result has channels innermost.

    Raises Unsupported before anything is written.
    """
    into = None if out is None else out.unsqueeze(2)
    right, bottom = pads
    given = _by_place(x), weight.unsqueeze(2), None, bias, (0, right, 0, bottom, 0, 0), into, stats, _BUSY
    y, parts = _convolve(*given, "down")
    return y.squeeze(2) if out is None else out, parts


def _by_place(y: Tensor) -> Tensor:
    """The pixels of [N, C, 2H, 2W] by their places in squares of 2x2, as [N, 2C, 2, H, W]: channels of a left and a
    right one; upper and lower rows."""
    n, c, h, w = y.shape
    try:
        return y.movedim(1, 3).view(n, h // 2, 2, w // 2, 2 * c).permute(0, 4, 2, 1, 3)
    except RuntimeError:
        raise Unsupported("a map whose sides are odd, or whose columns lie apart") from None


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
    """conv_add of maps [N, C, T, H, W] which fill so much of the multiprocessors' time; or enlarge_conv, ``out`` being
    given by place; or down_conv, x being given by place."""
    shape = _check(x, weight, residual, bias, pads, out, form)
    samples, _, frames, height, width = shape
    channels, wide = weight.shape[0], shape[1] // _WIDE
    tiles = samples * frames * -(-height // _TILE) * -(-width // _TILE)
    has = card(x.device.index)
    slots = max(1, has.multiprocessors // wide)
    turns, here = -(-tiles // slots), asked()
    if here is None and math.prod(shape) < busy * turns * slots * wide * _WIDE * _TILE**2:
        raise Unsupported(f"{height}x{width} of {channels} channels leave multiprocessors idle")
    slots = min(slots, tiles)
    y = out
    if y is None:
        y = torch.empty_strided(shape, channels_last(shape), dtype=x.dtype, device=x.device)
    forms = ("ENLARGE", form == "enlarge"), ("DOWN", form == "down")
    flags = ("RESIDUAL", residual is not None), ("STATS", stats), *forms
    macros = (("ELEMENT", ELEMENTS[x.dtype]), *((name, int(is_so)) for name, is_so in flags))
    blocks = slots * shape[1] // channels
    parts = torch.empty((samples, blocks, 3, channels), dtype=torch.float64, device=x.device) if stats else None
    build = "hopper_conv", macros, x.device.index
    if here is not None:
        here.want(build, lambda: load("conv", *build))
        return y, parts
    wait_for(build)
    kernel = load("conv", *build)
    wide_bias = bias is not None and bias.dtype != x.dtype
    shift = None if bias is None else (bias.float() if wide_bias else bias).contiguous()
    other = y if residual is None else residual  # which the kernel does not look at then
    tensors = (
        *(_boxes_of(x, _TILE + 2, _TILE + 2), _taps_of(weight)),
        *(_boxes_of(other, _TILE, _ROWS), _boxes_of(y, _TILE, _ROWS)),
    )
    addresses = [None if t is None else t.data_ptr() for t in (shift, parts)]
    left, _, top, _, front, _ = pads
    cut = wide, weight.shape[1] // _DEEP, weight.shape[2]
    work = _Work(*addresses, samples, frames, height, width, channels, *cut, left, top, front, wide_bias)
    arguments = [*(t.getPtr() for t in tensors), ctypes.addressof(work)]
    launch(kernel, slots * wide, _THREADS, has.shared_block, x.device.index, arguments)
    return y, parts


def _check(
    x: Tensor,
    weight: Tensor,
    residual: Tensor | None,
    bias: Tensor | None,
    pads: Sequence[int],
    out: Tensor | None,
    form: Form,
) -> tuple[int, ...]:
    """The result's shape, by place where it is enlarged. Raises Unsupported for what the kernel does not take, whatever
    the size of the picture."""
    reason = missing()
    if reason:
        raise Failed(reason)
    maps = [t for t in (x, weight, residual, out) if t is not None]
    if x.dtype not in (torch.bfloat16, torch.float16) or any(t.dtype != x.dtype or t.device != x.device for t in maps):
        raise Unsupported(f"maps of {x.dtype}, or of unlike type or device")
    enlarge, step = form == "enlarge", 2 if form == "down" else 1
    kernel = weight.shape[3] - enlarge  # of whose taps 4x4 sums were made
    if weight.shape[3] != weight.shape[4] or not takes(weight.shape[0], weight.shape[1], kernel):
        raise Unsupported(f"a weight {list(weight.shape)}")
    if any(t.stride(1) != 1 or t.data_ptr() % 16 or _steps(t) is None for t in maps):
        raise Unsupported("maps that are empty, or whose channels are not innermost, or not at multiples of 16 bytes")
    if weight.stride() != channels_last(tuple(weight.shape)):
        raise Unsupported("a weight whose channels are not innermost")
    if bias is not None and (bias.device != x.device or bias.dtype == torch.float64):
        raise Unsupported("a bias in float64, or elsewhere")
    if torch.is_grad_enabled() and any(t.requires_grad for t in maps):
        raise Unsupported("no gradients at this level")
    left, right, top, bottom, front, back = pads
    samples, channels, *seen = x.shape
    if form == "down":  # squares of pixels
        channels, seen = channels // 2, [1, 2 * seen[1], 2 * seen[2]]
    each = zip(seen, (front + back, top + bottom, left + right), (weight.shape[2], kernel, kernel), strict=True)
    shape: tuple[int, ...] = samples, weight.shape[0], *((n + more - taps) // step + 1 for n, more, taps in each)
    if min(shape) < 1 or channels != weight.shape[1]:
        raise Unsupported(f"a map {[samples, channels, *seen]} for a weight {list(weight.shape)}")
    if enlarge:
        shape = shape[0], 2 * shape[1], 2, *shape[3:]
    if any(t is not None and t.shape != shape for t in (residual, out)):
        raise Unsupported(f"a sum, or a place for it, that is not {list(shape)}")
    return shape


def _steps(t: Tensor) -> tuple[int, ...] | None:
    """Bytes from column to column, row to row, frame to frame, sample to sample; None where boxes cannot be copied."""
    steps, dense = [], t.shape[1]
    for dim in (4, 3, 2, 0):
        step = dense if t.shape[dim] == 1 else t.stride(dim)
        steps.append(step * t.element_size())
        dense = step * t.shape[dim]
    return None if any(step <= 0 or step % 16 or step >= 1 << 40 for step in steps) else tuple(steps)


def _boxes_of(t: Tensor, columns: int, rows: int) -> Any:
    """A map, in boxes of 64 channels, so many columns and so many rows of one frame."""
    samples, channels, frames, height, width = t.shape
    steps = _steps(t)
    assert steps is not None
    return boxes(t.data_ptr(), t.dtype, (channels, width, height, frames, samples), steps, (_DEEP, columns, rows, 1, 1))


def _taps_of(weight: Tensor) -> Any:
    """A weight, in boxes of 128x64 channels of one tap."""
    outer, inner, size, taps = weight.shape[0], weight.shape[1], weight.element_size(), weight[0, 0].numel()
    steps = inner * size, inner * taps * size
    return boxes(weight.data_ptr(), weight.dtype, (inner, taps, outer), steps, (_DEEP, 1, _WIDE))
