"""How the convolution for Hopper is cut for maps of one layout, or why it does not take them."""

from __future__ import annotations

import ctypes
import math
from functools import lru_cache
from typing import Literal, NamedTuple

import torch

from tvae.kernels.cuda.boxes import Boxes, boxes_of
from tvae.kernels.cuda.launch import card
from tvae.kernels.cuda.maps import ELEMENTS, Layout
from tvae.kernels.layout import channels_last

__all__ = ["SCATTERED", "Cut", "Form", "Seen", "Work", "cut_for", "takes"]

_TILE = 16
"""Rows and columns of a block's tile."""
_ROWS = 2
"""Rows of a tile that a warp writes."""
_DEEP, _WIDE = 64, 128
"""Channels of x that are loaded at once, and of y that a block computes: these divide what there is."""

Form = Literal["same", "down", "enlarge"]
"""Of a convolution: in steps of one, of two, or of a picture enlarged twice."""


def takes(outer: int, inner: int, kernel: int) -> bool:
    """Is it for convolutions of so many channels?"""
    return kernel == 3 and inner % _DEEP == 0 and outer % _WIDE == 0


class Work(ctypes.Structure):
    """What the kernel is told beside its maps, as in the source."""

    _fields_ = (
        *[(name, ctypes.c_void_p) for name in ("bias", "parts")],
        *[
            (name, ctypes.c_int)
            for name in ("samples", "frames", "height", "width", "channels", "wide", "deep", "times")
        ],
        *[(name, ctypes.c_int) for name in ("left", "top", "front", "float_bias")],
    )


class Cut(NamedTuple):
    """A convolution of maps of one layout, without their memory."""

    made: Layout
    """Of a result that has no place yet."""
    build: tuple[str, tuple[tuple[str, int], ...], int]
    blocks: int
    idle: bool
    """Does it leave multiprocessors idle?"""
    parts: tuple[int, ...]
    """The shape of its statistics."""
    boxes: tuple[Boxes, ...]
    """How x, weight, residual and y are copied."""
    work: bytes
    """What the kernel is told, without addresses."""


Seen = tuple[tuple[int, ...], tuple[int, ...], torch.dtype, torch.device]
"""Shape, strides, type and device of a map."""


SCATTERED = "maps that are empty, or whose channels are not innermost, or not at multiples of 16 bytes"


@lru_cache(1 << 12)  # a run asks the same of a hundred convolutions
def cut_for(
    seen: tuple[Seen | None, ...],
    bias: tuple[torch.dtype, torch.device] | None,
    pads: tuple[int, ...],
    stats: bool,
    busy: float,
    form: Form,
) -> Cut | str:
    """seen: x, weight, residual and a place for y. A text: why the kernel does not take them, whatever the size of the
    picture."""
    x, weight, residual, out = maps = [None if t is None else _as_clip(t) for t in seen]
    assert x is not None
    assert weight is not None
    (_, _, dtype, device), taps = x, weight[0]
    if dtype not in (torch.bfloat16, torch.float16) or any(t and t[2:] != (dtype, device) for t in maps):
        return f"maps of {dtype}, or of unlike type or device"
    enlarge, step = form == "enlarge", 2 if form == "down" else 1
    kernel = taps[3] - enlarge  # of whose taps 4x4 sums were made
    if taps[3] != taps[4] or not takes(taps[0], taps[1], kernel):
        return f"a weight {list(taps)}"
    size = dtype.itemsize
    steps = [_steps(*t[:2], size) if t else () for t in maps]
    if None in steps:
        return SCATTERED
    if weight[1] != channels_last(tuple(taps)):
        return "a weight whose channels are not innermost"
    if bias is not None and (bias[1] != device or bias[0] == torch.float64):
        return "a bias in float64, or elsewhere"
    left, right, top, bottom, front, back = pads
    samples, channels, *sides = x[0]
    if form == "down":  # squares of pixels
        channels, sides = channels // 2, [1, 2 * sides[1], 2 * sides[2]]
    each = zip(sides, (front + back, top + bottom, left + right), (taps[2], kernel, kernel), strict=True)
    shape: tuple[int, ...] = samples, taps[0], *((n + more - width) // step + 1 for n, more, width in each)
    if min(shape) < 1 or channels != taps[1]:
        return f"a map {[samples, channels, *sides]} for a weight {list(taps)}"
    if enlarge:
        shape = shape[0], 2 * shape[1], 2, *shape[3:]
    if any(t is not None and t[0] != shape for t in (residual, out)):
        return f"a sum, or a place for it, that is not {list(shape)}"
    _, _, frames, height, width = shape
    wide = shape[1] // _WIDE
    tiles = samples * frames * -(-height // _TILE) * -(-width // _TILE)
    slots = max(1, card(device.index).multiprocessors // wide)
    turns = -(-tiles // slots)
    idle = math.prod(shape) < busy * turns * slots * wide * _WIDE * _TILE**2
    slots = min(slots, tiles)
    forms = ("ENLARGE", enlarge), ("DOWN", form == "down")
    flags = ("RESIDUAL", residual is not None), ("STATS", stats), *forms
    macros = (("ELEMENT", ELEMENTS[dtype]), *((name, int(is_so)) for name, is_so in flags))
    of_x, _, of_residual, of_y = steps
    made = _boxes_of(shape, of_y or _steps(shape, channels_last(shape), size), dtype, _TILE, _ROWS)
    added = made if residual is None else _boxes_of(shape, of_residual, dtype, _TILE, _ROWS)
    seen_at = _boxes_of(x[0], of_x, dtype, _TILE + 2, _TILE + 2)
    how = seen_at, _taps_of(taps, dtype), added, made
    work = Work(0, 0, samples, frames, height, width, taps[0], wide, taps[1] // _DEEP, taps[2], left, top, front, 0)
    parts = samples, slots * shape[1] // taps[0], 3, taps[0]
    given = shape if seen[1] is None or len(seen[1][0]) == 5 else (*shape[:2], *shape[3:])
    build = "hopper_conv", macros, device.index
    return Cut((given, channels_last(given)), build, slots * wide, idle, parts, how, bytes(work))


@lru_cache(1 << 12)
def _as_clip(picture: Seen) -> Seen:
    """With one frame, where it has none."""
    shape, strides, dtype, device = picture
    if len(shape) == 5:
        return picture
    frame = shape[2] * strides[2]
    return (*shape[:2], 1, *shape[2:]), (*strides[:2], frame, *strides[2:]), dtype, device


@lru_cache(1 << 12)
def _steps(shape: tuple[int, ...], strides: tuple[int, ...], size: int) -> tuple[int, ...] | None:
    """Bytes from column to column, row to row, frame to frame, sample to sample of a map whose elements have so many;
    None where boxes cannot be copied, or the channels are not innermost."""
    if strides[1] != 1:
        return None
    steps, dense = [], shape[1]
    for dim in (4, 3, 2, 0):
        step = dense if shape[dim] == 1 else strides[dim]
        if step <= 0 or step * size % 16 or step * size >= 1 << 40:
            return None
        steps.append(step * size)
        dense = step * shape[dim]
    return tuple(steps)


def _boxes_of(
    shape: tuple[int, ...], steps: tuple[int, ...] | None, dtype: torch.dtype, columns: int, rows: int
) -> Boxes:
    """A map in boxes of 64 channels, so many columns and so many rows of one frame. steps: see ``_steps``."""
    samples, channels, frames, height, width = shape
    assert steps is not None
    return boxes_of(dtype, (channels, width, height, frames, samples), steps, (_DEEP, columns, rows, 1, 1))


def _taps_of(shape: tuple[int, ...], dtype: torch.dtype) -> Boxes:
    """A weight in boxes of 128x64 channels of one tap."""
    outer, inner, taps, size = shape[0], shape[1], math.prod(shape[2:]), dtype.itemsize
    return boxes_of(dtype, (inner, taps, outer), (inner * size, inner * taps * size), (_DEEP, 1, _WIDE))
