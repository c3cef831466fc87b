"""What every launch needs: the tensors as pixels, the tile of a program, how many programs, the right device."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from functools import cache, lru_cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton import knobs
from triton.tools.tensor_descriptor import TensorDescriptor

from tvae.kernels import current
from tvae.kernels.layout import channels_last, pixels_of
from tvae.kernels.prebuild import asked, under_way, wait_for
from tvae.kernels.registry import Unsupported
from tvae.kernels.triton.sizes import power_of_2
from tvae.kernels.triton.specialised import same_launch, specialisation
from tvae.kernels.triton_reading import read_triton, wait_for_reading

__all__ = [
    "FURTHEST",
    "INTERPRETED",
    "Map",
    "Tuning",
    "channel_block",
    "check_kind",
    "check_place",
    "check_vector",
    "compiled",
    "dense_wide",
    "device_of",
    "empty_last",
    "launch",
    "map_of",
    "pixel_block",
    "programs",
    "shared_map",
    "wide_block",
]

INTERPRETED: bool = knobs.runtime.interpret
"""Whether the kernels run in Triton's interpreter on the CPU (TRITON_INTERPRET=1 at import): slow, for tests."""

_LAUNCHERS: dict[tuple[str, ...], threading.Lock] = {}
"""Held while a launcher for arguments of these types is compiled; the next finds it on disk."""
_MADE: dict[Hashable, Any] = {}
"""Compiled kernels by what they are specialised for: Triton's own way to them is most of a launch."""
_READY: dict[Hashable, tuple[Any, tuple[Any, ...], Any]] = {}
"""The same by all that they were launched with but the memory, which is told faster; with constants, and the kernel."""
_MOST = 1 << 14
_TYPES = (torch.bfloat16, torch.float16, torch.float32)
_MOST_CHANNELS = 128
"""Of a tile: one kernel serves 128, 256 and 512 channels, and reads them as fast as kernels for all of a pixel's do. It
masks what goes beyond, which costs nothing where 16 divides the channels."""
FURTHEST = 2**31 - 2**20
"""Offsets inside a tile and numbers of pixels stay below this: they are int32 in the kernels, tile bases are int64."""


class Tuning(NamedTuple):
    """How a kernel is cut: what the benchmark sweeps. None of it changes a result beyond rounding."""

    tile_bytes: int
    """Of one tile of x: [pixels, channels] with a power of two of each."""
    warps: int
    per_sm: int
    """Programs per multiprocessor; each takes every n-th tile."""
    stages: int
    """Tiles in flight per program, through shared memory; 1: straight to registers."""


class Map(NamedTuple):
    """Tensors of one shape as [samples, outer, pixels, channels]; strides: (sample, outer, pixel) of each tensor."""

    samples: int
    outer: int
    pixels: int
    channels: int
    strides: tuple[tuple[int, int, int], ...]


def shared_map(*tensors: Tensor) -> Map:
    """The pixels of tensors x_nc* that are read and written together.

    Raises Unsupported where the kernels cannot take them: other types or devices, channels that are not innermost,
    pixels at uneven steps, or steps that differ too much between the tensors.
    """
    x = tensors[0]
    check_place(x)
    for t in tensors[1:]:
        if t.shape != x.shape or t.dtype != x.dtype or t.device != x.device:
            raise Unsupported("tensors of unlike shape, type or device")
    return map_of(x.shape, *[t.stride() for t in tensors])


@lru_cache(1 << 14)  # a run asks the same a thousand times
def map_of(shape: tuple[int, ...], *steps: tuple[int, ...]) -> Map:
    """The same of tensors of this shape with these strides. Raises Unsupported as well."""
    views = []
    for strides in steps:
        view = pixels_of(shape, strides)
        if view is None:
            raise Unsupported("the channels are not innermost, or the pixels lie at uneven steps")
        views.append(view)
    widest = max(views, key=lambda view: view.outer)
    found = []
    for view in views:
        if view.outer == 1:  # one even run, whatever runs it is cut into
            outer_stride = view.pixel_stride * widest.pixels if widest.outer > 1 else 0
        elif (view.outer, view.pixels) == (widest.outer, widest.pixels):
            outer_stride = view.outer_stride
        else:
            raise Unsupported("the tensors' pixels lie at unlike steps")
        found.append((view.sample_stride if view.samples > 1 else 0, outer_stride, view.pixel_stride))
    if max(widest.pixels, *(s[2] * 4096 for s in found)) > FURTHEST:
        raise Unsupported("too many pixels, or pixels too far apart")
    return Map(widest.samples, widest.outer, widest.pixels, widest.channels, tuple(found))


def check_place(x: Tensor) -> None:
    """Raise Unsupported for a type or device that the kernels do not take."""
    check_kind(x.dtype, x.device)


def check_kind(dtype: torch.dtype, device: torch.device) -> None:
    """The same of a tensor of this type on this device."""
    if dtype not in _TYPES:
        raise Unsupported(f"{dtype} values")
    if device.type != "cuda" and not INTERPRETED:
        raise Unsupported(f"a tensor on {device.type}")


def check_vector(name: str, vector: Tensor | None, channels: int, device: torch.device) -> Tensor | None:
    """A [C] parameter, its elements next to each other. ValueError for another shape."""
    if vector is None:
        return None
    if vector.shape != (channels,):
        raise ValueError(f"{name} is {list(vector.shape)}, not one value for each of the {channels} channels")
    if vector.device != device or not vector.dtype.is_floating_point:
        raise Unsupported(f"{name} has the type {vector.dtype} on {vector.device}")
    return vector.contiguous()


def dense_wide(affine: Tensor) -> Tensor:
    """A map of floating-point numbers as the kernels read it: float32, dense."""
    return affine if affine.dtype == torch.float32 and affine.is_contiguous() else affine.float().contiguous()


def channel_block(channels: int) -> int:
    """Channels of a tile, a power of two: one that divides them where it is wide enough to load."""
    dividing = channels & -channels
    return min(dividing, _MOST_CHANNELS) if dividing >= 64 else wide_block(channels)


def wide_block(channels: int) -> int:
    """The same where they need not be divided: what only moves pixels is as fast, with fewer kernels."""
    return min(power_of_2(channels), _MOST_CHANNELS)


def pixel_block(tuning: Tuning, block: int, item_size: int) -> int:
    """Pixels of a tile of ``block`` channels: at most 4096."""
    return max(1, min(4096, tuning.tile_bytes // (item_size * block)))


def programs(device: torch.device, tuning: Tuning, runs: int, tiles: int, longest: int) -> int:
    """Programs for each of ``runs`` runs of ``tiles`` tiles, none of them taking more than ``longest`` tiles."""
    wanted = max(1, tuning.per_sm * _processors(device.index) // runs)
    return min(tiles, max(wanted, -(-tiles // longest)))


@cache
def _processors(index: int | None) -> int:
    if index is None:  # the interpreter's: enough for several blocks of statistics
        return 2
    return int(torch.cuda.get_device_properties(index).multi_processor_count)


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
    """``kernel[grid](...)`` on the current device; in a rehearsal the kernel is built instead, by a thread.

    Options are compile-time values.
    """
    builds, device = asked(), 0 if INTERPRETED else current.device()
    if builds is not None:
        kernel.device_caches[device]  # made here: two threads would make two
        likes = tuple(_like(value) for value in args)
        builds.want(specialisation(kernel, device, args, options), partial(_build, kernel, device, likes, options))
        return
    same = None if INTERPRETED else same_launch(kernel, device, args, options)
    ready = None if same is None else _READY.get(same)
    if ready is None:
        key = specialisation(kernel, device, args, options) if same is not None or under_way() else None
        made = None if same is None else _MADE.get(key)
        if made is None:
            wait_for(key)
            wait_for_reading()
            made = kernel[grid](*args, **options)
            if same is not None:
                _add(_MADE, key, made)
            return
        ready = made, tuple(options[name] for name in kernel.arg_names[len(args) :]), kernel
        _add(_READY, same, ready)
    made, constants, _ = ready
    made[(*grid, 1, 1)[:3]](*args, *constants, stream=current.stream(device))


def compiled(
    kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], options: dict[str, Any]
) -> Callable[..., None] | None:
    """What starts the kernel that was compiled for such arguments on the current device, where one was: given the
    stream, the arguments, and constants after them."""
    made = None if INTERPRETED else _MADE.get(specialisation(kernel, current.device(), args, options))
    return None if made is None else _Started(made, (*grid, 1, 1)[:3])


class _Started:
    """A compiled kernel with its grid. Triton's own call makes notes for the hooks of profilers at each launch, whether
    there are hooks or not."""

    __slots__ = ("_grid", "_made", "_rest", "_run")

    def __init__(self, made: Any, grid: tuple[int, ...]) -> None:
        self._made, self._grid, self._run = made, grid, made.run
        self._rest = made.function, made.packed_metadata, None, None, None

    def __call__(self, stream: int, *args: Any) -> None:
        enter, leave = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
        if getattr(enter, "calls", enter) or getattr(leave, "calls", leave):
            self._made[self._grid](*args, stream=stream)
        else:
            self._run(*self._grid, stream, *self._rest, *args)


def _add(found: dict[Hashable, Any], key: Hashable, value: Any) -> None:
    if len(found) >= _MOST:
        found.clear()
    found[key] = value


def _like(value: Any) -> Any:
    """What a kernel is built for as for this argument, without its memory: a build may outlive the rehearsal."""
    if isinstance(value, TensorDescriptor):
        return dataclasses.replace(value, base=_like(value.base))
    if not isinstance(value, Tensor):
        return value
    return torch.empty(32, dtype=value.dtype, device=value.device)[value.data_ptr() % 16 > 0 :]


def _build(kernel: Any, device: int, args: tuple[Any, ...], options: dict[str, Any]) -> None:
    read_triton()
    with torch.cuda.device(device):
        made = kernel.warmup(*args, grid=(1,), **options)
        types = tuple(getattr(made.src, "signature", {}).values())
        with _LAUNCHERS.setdefault(types, threading.Lock()):  # kernels of the same types share one
            made.run  # noqa: B018  (its launcher is made, and its code loaded, when first asked for)


def device_of(x: Tensor) -> AbstractContextManager[object]:
    """Triton launches on the current device: make it x's."""
    if not x.is_cuda or x.device.index == current.device():
        return nullcontext()
    return torch.cuda.device(x.device)


def empty_last(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """An uninitialised tensor of [N, C, *spatial] ``shape`` like x, dense, channels innermost."""
    return torch.empty_strided(shape, channels_last(shape), dtype=x.dtype, device=x.device)
