"""Launches of what ``attention`` does with a block of queries: first peaks, weights, their repair, and the product."""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from tvae.kernels.prebuild import asked, rehearsal
from tvae.kernels.triton.attention_plan import Plan, Scratch
from tvae.kernels.triton.attention_weights import peaks_kernel, repair_kernel, weights_kernel
from tvae.kernels.triton.launch import INTERPRETED
from tvae.kernels.triton.repeated import Repeated
from tvae.kernels.triton.sizes import ceil_div
from tvae.kernels.workspace import KEYS, product_rows

__all__ = ["add_product", "launch_peaks", "launch_repair", "launch_weights", "load_others"]

_WAVES = 2
"""Of programs that repair: each looks at all of its rows' largest exponents, and they share what is to be done."""
_ADDS = torch.__version__ >= "2.10"
"""Before, addmm wanted the accumulator in the type of the factors. Asked once, since each comparison takes 20 us."""
_loaded: set[Hashable] = set()
"""What ``load_others`` has seen to."""


def _tiles(channels: int, plan: Plan) -> dict[str, Any]:
    """What all three kernels are built for."""
    tile = {"TMA": plan.tma, "BM": plan.rows, "BN": plan.columns, "BK": plan.depth}
    return {"DEPTH": channels, **tile, "num_warps": plan.warps, "num_stages": plan.stages}


def _boxes(plan: Plan, *rows: int) -> tuple[tuple[int, ...], ...]:
    """Of matrices, each with the rows of its tile, as the kernels load them: ``plan.depth`` columns at a time."""
    return tuple([(each, plan.depth) for each in rows]) if plan.tma else ()


def _target(plan: Plan) -> tuple[tuple[int, ...], ...]:
    """Of the weights as the kernels store them: a slice of a tile at a time."""
    return ((plan.rows, plan.columns // plan.slices),) if plan.tma else ()


def _weights_of(scratch: Scratch, m: int, n: int) -> Tensor:
    """Where the weights of m queries and n keys go, and zeros up to a multiple of ``KEYS``."""
    return scratch.weights[:m, : KEYS * ceil_div(n, KEYS)]


def launch_peaks(q: Tensor, sample: Tensor, scratch: Scratch, factor: float, plan: Plan) -> None:
    sizes = *q.shape, len(sample), q.stride(0), sample.stride(0)
    _peaks(*sizes, factor, plan, q.device)(q, sample, scratch.peaks)


@lru_cache(1 << 10)
def _peaks(
    m: int, d: int, n: int, q_row: int, sample_row: int, factor: float, plan: Plan, device: torch.device
) -> Repeated:
    """For m queries and n sampled keys of d channels whose rows lie so far apart."""
    grid, boxes = (ceil_div(m, plan.rows),), _boxes(plan, plan.rows, plan.columns)
    return Repeated(peaks_kernel, grid, (m, n, factor, q_row, sample_row), _tiles(d, plan), device, boxes)


def launch_weights(q: Tensor, k: Tensor, scratch: Scratch, chunk: int, factor: float, plan: Plan) -> None:
    """The weights of a block of queries against a chunk of keys, and their sums and largest exponents per tile."""
    p, sums = _weights_of(scratch, len(q), len(k)), scratch.sums[chunk * scratch.share :]
    sizes = *q.shape, len(k), (q.stride(0), k.stride(0), p.stride(0), sums.stride(0))
    for mask in _masks(len(k), plan):
        _weights(*sizes, factor, mask, plan, q.device)(q, k, p, scratch.peaks[chunk], sums, scratch.tops)


@lru_cache(1 << 10)
def _weights(
    m: int, d: int, n: int, rows: tuple[int, ...], factor: float, mask: bool, plan: Plan, device: torch.device
) -> Repeated:
    """For m queries and n keys of d channels. rows: values from one row to the next of queries, keys, weights, sums."""
    grid = (min(plan.programs, ceil_div(m, plan.rows) * ceil_div(n, plan.columns)),)
    options = {"MASK": mask, "GROUP": plan.group, "SLICES": plan.slices, "FLAT": plan.flat, **_tiles(d, plan)}
    boxes = *_boxes(plan, plan.rows, plan.columns), *_target(plan)
    return Repeated(weights_kernel, grid, (m, n, factor, *rows), options, device, boxes)


def _masks(n: int, plan: Plan) -> tuple[bool, ...]:
    """Does the last tile of so many keys lack some? A rehearsal is for sizes where it does and where it does not."""
    return (n % plan.columns != 0,) if asked() is None else (False, True)


def launch_repair(q: Tensor, k: Tensor, scratch: Scratch, chunk: int, factor: float, plan: Plan) -> None:
    p, sums = _weights_of(scratch, len(q), len(k)), scratch.sums[chunk * scratch.share :]
    sizes = *q.shape, len(k), (q.stride(0), k.stride(0), p.stride(0), sums.stride(0))
    written = p, scratch.peaks[chunk], scratch.peaks[chunk + 1], sums, scratch.tops, scratch.wide
    even = q.dtype == torch.float16
    for mask in _masks(len(k), plan):
        _repair(*sizes, chunk == 0, factor, mask, even, plan, q.device)(q, k, *written)


@lru_cache(1 << 10)
def _repair(
    m: int,
    d: int,
    n: int,
    rows: tuple[int, ...],
    first: bool,
    factor: float,
    mask: bool,
    even: bool,
    plan: Plan,
    device: torch.device,
) -> Repeated:
    """The same, of the first chunk of keys or a later one."""
    blocks, tiles = ceil_div(m, plan.rows), ceil_div(n, plan.columns)
    share = ceil_div(tiles, max(1, _WAVES * plan.cores // blocks))
    options = {"MASK": mask, "SLICES": plan.slices, "EVEN": even, **_tiles(d, plan)}
    boxes = *_boxes(plan, plan.rows, plan.columns), *_target(plan)
    numbers = m, n, int(first), share, factor, *rows
    return Repeated(repair_kernel, (blocks, ceil_div(tiles, share)), numbers, options, device, boxes)


def add_product(wide: Tensor, p: Tensor, v: Tensor, first: bool) -> None:
    """wide += p·v in float32; ``first``: wide = p·v."""
    if first:
        torch.mm(p, v, out_dtype=torch.float32, out=wide)
    elif _ADDS:
        torch.addmm(wide, p, v, out_dtype=torch.float32, out=wide)
    else:
        wide += torch.mm(p, v, out_dtype=torch.float32)


def load_others(q: Tensor, k: Tensor, v: Tensor, scratch: Scratch, factor: float, plan: Plan) -> None:
    """Once for such queries: threads load the kernels that other numbers of keys want, and the BLAS library those that
    lower blocks of queries want, whose results nothing looks at.

    A kernel that is on disk is loaded when it first runs, which would be in the way of a later result.
    """
    seen = q.device, q.dtype, q.shape[1], plan
    if INTERPRETED or asked() is not None or seen in _loaded:
        return
    if q.is_cuda and torch.cuda.is_current_stream_capturing():  # it would be part of every replay
        return
    _loaded.add(seen)
    with rehearsal():
        launch_weights(q, k, scratch, 0, factor, plan)
        launch_repair(q, k, scratch, 0, factor, plan)
    for height in {product_rows(queries, plan.block) for queries in _blocks(plan)} - {len(scratch.wide)}:
        wide, weights = _room(scratch, height)
        for first in (True, False) if weights.shape[1] else ():
            add_product(wide, weights[:, : len(v)], v[: weights.shape[1]], first)


def _blocks(plan: Plan) -> range:
    """Queries of a block, one number for each that the second product may be of where a picture has several blocks."""
    return range(plan.block // 2 + 1, plan.block + 1, max(1, plan.block // 8))


def _room(scratch: Scratch, height: int) -> tuple[Tensor, Tensor]:
    """Results and weights of so many rows in the memory that there is: of fewer keys where it is lower."""
    if height <= len(scratch.wide):
        return scratch.wide[:height], scratch.weights[:height]
    depth, places = scratch.wide.shape[1], scratch.weights.view(-1)
    begin = height * depth * scratch.wide.itemsize // places.itemsize
    keys = max(0, len(places) - begin) // height // KEYS * KEYS
    wide = places[:begin].view(scratch.wide.dtype).view(height, depth) if keys else scratch.wide
    return wide, places[begin : begin + height * keys].view(height, keys)
