"""3x3 convolutions on Hopper's tensor cores that add, and take the statistics of, what they have made.

The kernel is in ``hopper_conv.cu``. It keeps the pixels of a tile in shared memory for all nine taps, so that it reads
less than a matrix product of the same size, and writes a tile while it computes the next one.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from tvae.kernels.ahead import asked, wait_for
from tvae.kernels.convolution import convolved_shape
from tvae.kernels.cuda import program
from tvae.kernels.cuda.boxes import boxes
from tvae.kernels.cuda.launch import card, launch, load
from tvae.kernels.cuda.maps import ELEMENTS, channels_last
from tvae.kernels.registry import Failed, Unsupported

__all__ = ["check", "conv_add", "missing", "takes"]

_HOPPER = (9, 0)
_TILE = 16
"""Rows and columns of a block's tile."""
_ROWS = 2
"""Rows of a tile that a warp writes."""
_DEEP, _WIDE = 64, 128
"""Channels of x that are loaded at once, and of y that a block computes: these divide what there is."""
_THREADS = 384
_SHARED = 3 * 41984 + 6 * 16384 + 2 * 512 + (3 + 6) * 16
"""Bytes: stages of pixels, stages of taps, two vectors, barriers (see the source)."""
_BUSY = 0.63
"""Share of the multiprocessors' time that tiles must fill: with less, cuDNN's smaller tiles are faster (H200)."""


class _Work(ctypes.Structure):
    """As in the source."""

    _fields_ = (
        *[(name, ctypes.c_void_p) for name in ("bias", "parts")],
        *[(name, ctypes.c_int) for name in ("samples", "height", "width", "channels", "wide", "deep", "left", "top")],
    )


@cache
def missing() -> str | None:
    """Why the kernel cannot run on this machine, or None."""
    if not torch.cuda.is_available() or torch.version.cuda is None:
        return "no NVIDIA GPU"
    if torch.cuda.get_device_capability() != _HOPPER:
        return "not a GPU of compute capability 9.0"
    return program.missing()


def takes(outer: int, inner: int, kernel: int) -> bool:
    """Is it for convolutions of so many channels?"""
    return kernel == 3 and inner % _DEEP == 0 and outer % _WIDE == 0


def conv_add(
    x: Tensor,
    weight: Tensor,
    residual: Tensor | None,
    bias: Tensor | None,
    pads: Sequence[int],
    y: Tensor,
    stats: bool,
) -> Tensor | None:
    """y = conv2d of x_nchw with zeros around it + residual + bias, in float32, rounded once; with ``stats`` the parts
    of y. y may be the residual.

    Raises Unsupported before anything is written.
    """
    check(x, weight, residual, bias, y)
    if y.shape != convolved_shape(x, weight, pads) or x.shape[1] != weight.shape[1]:
        raise Unsupported(f"a result {list(y.shape)} of {list(x.shape)}")
    if residual is not None and residual.shape != y.shape:
        raise Unsupported(f"a residual {list(residual.shape)} of {list(y.shape)}")
    samples, channels, height, width = y.shape
    wide, tiles = channels // _WIDE, samples * -(-height // _TILE) * -(-width // _TILE)
    slots = max(1, card(x.device.index).multiprocessors // wide)
    turns = -(-tiles // slots)
    if asked() is None and y.numel() < _BUSY * turns * slots * wide * _WIDE * _TILE**2:
        raise Unsupported(f"{height}x{width} of {channels} channels leave multiprocessors idle")
    slots = min(slots, tiles)
    macros = (("ELEMENT", ELEMENTS[x.dtype]), ("RESIDUAL", int(residual is not None)), ("STATS", int(stats)))
    parts = torch.empty((samples, slots, 3, channels), dtype=torch.float64, device=x.device) if stats else None
    build, here = ("hopper_conv", macros, x.device.index), asked()
    if here is not None:
        here.want(build, lambda: load("conv", *build))
        return parts
    wait_for(build)
    kernel = load("conv", *build)
    shift = None if bias is None else bias.float().contiguous()
    other = y if residual is None else residual  # which the kernel does not look at then
    tensors = (
        *(_boxes_of(x, _TILE + 2, _TILE + 2), _taps_of(weight)),
        *(_boxes_of(other, _TILE, _TILE), _boxes_of(y, _TILE, _ROWS)),
    )
    addresses = [None if t is None else t.data_ptr() for t in (shift, parts)]
    work = _Work(*addresses, samples, height, width, channels, wide, x.shape[1] // _DEEP, pads[0], pads[2])
    arguments = [*(t.getPtr() for t in tensors), ctypes.addressof(work)]
    launch(kernel, slots * wide, _THREADS, _SHARED, x.device.index, arguments)
    return parts


def check(x: Tensor, weight: Tensor, residual: Tensor | None, bias: Tensor | None, y: Tensor) -> None:
    """Raise Unsupported for what the kernel does not take, whatever the size of the picture."""
    reason = missing()
    if reason:
        raise Failed(reason)
    maps = [t for t in (x, weight, residual, y) if t is not None]
    if x.dtype not in (torch.bfloat16, torch.float16) or any(t.dtype != x.dtype or t.device != x.device for t in maps):
        raise Unsupported(f"maps of {x.dtype}, or of unlike type or device")
    if weight.shape[2] != weight.shape[3] or not takes(*weight.shape[:3]):
        raise Unsupported(f"a weight {list(weight.shape)}")
    if any(t.stride(1) != 1 or t.data_ptr() % 16 or _steps(t) is None for t in maps) or 0 in y.shape:
        raise Unsupported("maps that are empty, or whose channels are not innermost, or not at multiples of 16 bytes")
    if weight.stride() != channels_last(tuple(weight.shape)):
        raise Unsupported("a weight whose channels are not innermost")
    if bias is not None and (bias.device != x.device or bias.dtype == torch.float64):
        raise Unsupported("a bias in float64, or elsewhere")
    if torch.is_grad_enabled() and any(t.requires_grad for t in maps):
        raise Unsupported("no gradients at this level")


def _steps(t: Tensor) -> tuple[int, int, int] | None:
    """Bytes from column to column, row to row, picture to picture; None where boxes cannot be copied so."""
    steps, dense = [], t.shape[1]
    for dim in (3, 2, 0):
        step = dense if t.shape[dim] == 1 else t.stride(dim)
        steps.append(step * t.element_size())
        dense = step * t.shape[dim]
    return None if any(step <= 0 or step % 16 or step >= 1 << 40 for step in steps) else (steps[0], steps[1], steps[2])


def _boxes_of(t: Tensor, columns: int, rows: int) -> Any:
    """A map, in boxes of 64 channels, so many columns and so many rows."""
    samples, channels, height, width = t.shape
    steps = _steps(t)
    assert steps is not None
    return boxes(t.data_ptr(), t.dtype, (channels, width, height, samples), steps, (_DEEP, columns, rows, 1))


def _taps_of(weight: Tensor) -> Any:
    """A weight, in boxes of 128x64 channels of one tap."""
    outer, inner, size = weight.shape[0], weight.shape[1], weight.element_size()
    taps = (inner, weight[0, 0].numel(), outer)
    return boxes(weight.data_ptr(), weight.dtype, taps, (inner * size, weight[0].numel() * size), (_DEEP, 1, _WIDE))
