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


class _Taps(NamedTuple):
    """What a weight decides, whatever the size of the picture."""

    outer: int
    inner: int
    deep: int
    kernel: int
    clip: bool
    """Is it of a clip?"""
    boxes: Boxes
    build: tuple[str, tuple[tuple[str, int], ...], int]


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
    x, weight, residual, out = seen
    assert x is not None
    assert weight is not None
    shape, strides, dtype, device = x
    if any(t and t[2:] != (dtype, device) for t in seen[1:]):
        return f"maps of {dtype}, or of unlike type or device"
    taps = _taps_of(weight, bias, residual is not None, stats, form)
    if isinstance(taps, str):
        return taps
    size = dtype.itemsize
    (sides, of_x), added, place = _placed(shape, strides, size), _known(residual, size), _known(out, size)
    if of_x is None or (added and added[1] is None) or (place and place[1] is None):
        return SCATTERED
    samples, channels, frames, height, width = sides
    if form == "down":  # squares of pixels
        channels, frames, height, width = channels // 2, 1, 2 * height, 2 * width
    left, right, top, bottom, front, back = pads
    step, less = 2 if form == "down" else 1, taps.kernel
    made: tuple[int, ...] = (
        *(samples, taps.outer, frames + front + back - taps.deep + 1),
        *((height + top + bottom - less) // step + 1, (width + left + right - less) // step + 1),
    )
    if min(made) < 1 or channels != taps.inner:
        return f"a map {[samples, channels, frames, height, width]} for a weight {list(weight[0])}"
    if form == "enlarge":
        made = made[0], 2 * made[1], 2, *made[3:]
    if (added and added[0] != made) or (place and place[0] != made):
        return f"a sum, or a place for it, that is not {list(made)}"
    _, outer, frames, height, width = made
    wide = outer // _WIDE
    tiles = samples * frames * -(-height // _TILE) * -(-width // _TILE)
    slots = max(1, card(device.index).multiprocessors // wide)
    turns = -(-tiles // slots)
    idle = math.prod(made) < busy * turns * slots * wide * _WIDE * _TILE**2
    slots = min(slots, tiles)
    given = made if taps.clip else (*made[:2], *made[3:])
    lies = given, channels_last(given)
    of_y = _boxes_of(*(place or _placed(*lies, size)), dtype, _TILE, _ROWS)
    of_sum = of_y if added is None else _boxes_of(*added, dtype, _TILE, _ROWS)
    maps = _boxes_of(sides, of_x, dtype, _TILE + 2, _TILE + 2), taps.boxes, of_sum, of_y
    depths = taps.inner // _DEEP, taps.deep
    work = Work(0, 0, samples, frames, height, width, taps.outer, wide, *depths, left, top, front, 0)
    parts = samples, slots * outer // taps.outer, 3, taps.outer
    return Cut(lies, taps.build, slots * wide, idle, parts, maps, bytes(work))


@lru_cache(1 << 10)
def _taps_of(
    weight: Seen, bias: tuple[torch.dtype, torch.device] | None, adds: bool, stats: bool, form: Form
) -> _Taps | str:
    """Of a convolution that adds a residual, and takes statistics. A text as of ``cut_for``."""
    shape, strides, dtype, device = weight
    if dtype not in (torch.bfloat16, torch.float16):
        return f"maps of {dtype}"
    outer, inner, *sides = shape
    kernel = sides[-1] - (form == "enlarge")  # of whose taps 4x4 sums were made
    if sides[-2] != sides[-1] or not takes(outer, inner, kernel):
        return f"a weight {list(shape)}"
    if strides != channels_last(shape):
        return SCATTERED if strides[1] != 1 else "a weight whose channels are not innermost"
    if bias is not None and (bias[1] != device or bias[0] == torch.float64):
        return "a bias in float64, or elsewhere"
    flags = ("RESIDUAL", adds), ("STATS", stats), ("ENLARGE", form == "enlarge"), ("DOWN", form == "down")
    macros = ("ELEMENT", ELEMENTS[dtype]), *[(name, int(is_so)) for name, is_so in flags]
    count, step = math.prod(sides), inner * dtype.itemsize
    boxes = boxes_of(dtype, (inner, count, outer), (step, step * count), (_DEEP, 1, _WIDE))
    clip = len(sides) == 3
    return _Taps(outer, inner, sides[0] if clip else 1, kernel, clip, boxes, ("hopper_conv", macros, device.index))


def _known(picture: Seen | None, size: int) -> tuple[tuple[int, ...], tuple[int, ...] | None] | None:
    return None if picture is None else _placed(picture[0], picture[1], size)


@lru_cache(1 << 12)
def _placed(
    shape: tuple[int, ...], strides: tuple[int, ...], size: int
) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """The shape of a clip, a picture being one frame, and ``_steps``."""
    if len(shape) == 4:
        frame = shape[2] * strides[2]
        shape, strides = (*shape[:2], 1, *shape[2:]), (*strides[:2], frame, *strides[2:])
    return tuple(shape), _steps(shape, strides, size)


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
