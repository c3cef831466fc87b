"""Attention of one wide head (384 to 1024 channels) as two matrix products with the exponential in between.

A fused kernel has no room for a head this wide: its accumulator fills the registers and every tile of queries reads
all keys and values again. Here a block of queries is taken at a time and, for a chunk of keys at a time, the weights
P = 2^(q·kᵀ·scale·log2(e) - peak) are written in float16 by one matrix kernel with that epilogue; the BLAS library adds
P·V to a float32 accumulator; a last kernel divides by the sums of the rows. Memory beyond a narrow copy of the values
is constant but for 4 bytes per row of a block and 256 keys.

The peaks are guesses: 8 times below the largest of some hundred scores of the row. float16 holds weights up to 2^16, so
a guess serves while no score exceeds it by more than 15.9; where one does, the device raises the peak and computes that
chunk of those rows again before the sum (``repair_kernel``; the host never waits). A good guess costs two products, the
worst three, and the result is the same but for rounding.

Error: P is rounded to 11 bits (weights below 2^-17 of the largest to an absolute 2^-28 of it), where PyTorch's kernels
round it to the type of the inputs; bfloat16 values become float16 exactly, by a power of two for each channel, down to
2^-29 of the channel's largest. Both products and the sums accumulate in float32 and the output is rounded once: for
bfloat16 the error is below PyTorch's. For float16 it is up to 6 % above it: where few weights make up a row, PyTorch's
largest is 1 and exact, so that such rows are computed again here with a peak that makes theirs a power of two.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from tvae.kernels.registry import Unsupported
from tvae.kernels.triton.attention_ends import finish_kernel, largest_kernel, narrow_kernel
from tvae.kernels.triton.attention_launches import (
    add_product,
    launch_peaks,
    launch_repair,
    launch_weights,
    load_others,
)
from tvae.kernels.triton.attention_plan import Plan, Scratch, plan_for
from tvae.kernels.triton.launch import device_of
from tvae.kernels.triton.repeated import Repeated
from tvae.kernels.triton.sizes import ceil_div
from tvae.kernels.workspace import FEWEST_KEYS, KEYS, attends

__all__ = ["attend", "attend_frames", "wide_attention"]

_SAMPLED = 512
"""Keys at most that peaks are guessed from: a thirty-second of them, or a tile where that is more."""
_SHARE = 128
"""Values whose largest magnitudes one program finds."""


def wide_attention(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> Tensor:
    """See ``operations.wide_attention``: bfloat16, float16 on NVIDIA GPUs, 384 to 1024 channels in multiples of 64."""
    d = q.shape[3]
    if q.dtype not in (torch.bfloat16, torch.float16) or k.dtype != q.dtype or v.dtype != q.dtype:
        raise Unsupported("takes bfloat16 and float16")
    if q.device.type != "cuda" or torch.version.cuda is None:
        raise Unsupported("needs an NVIDIA GPU")
    if not attends(q.element_size(), k.shape[1] * k.shape[2], d):
        raise Unsupported(f"takes 384 to 1024 channels in multiples of 64, and {FEWEST_KEYS} keys or more")
    with device_of(q):
        return attend_frames(q, k, v, scale, causal, plan_for(q.device, d))


def attend_frames(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool, plan: Plan) -> Tensor:
    """``wide_attention`` by a plan, frame by frame where each sees other keys."""
    b, t, m, d = q.shape
    out = torch.empty((b, t, m, d), dtype=q.dtype, device=q.device)
    for i in range(b):
        queries, keys, values = (_readable(x[i].reshape(-1, d)) for x in (q, k, v))
        narrow, largest = _narrow(values)
        if not causal:
            attend(queries, keys, narrow, largest, out[i].view(-1, d), scale, plan)
            continue
        for frame in range(t):
            seen, own = (frame + 1) * k.shape[2], slice(frame * m, (frame + 1) * m)
            attend(queries[own], keys[:seen], narrow[:seen], largest, out[i, frame], scale, plan)
    return out


def _readable(x: Tensor) -> Tensor:
    """x_nd as bulk copies read it: channels dense, rows at multiples of 16 bytes; a copy where it is not."""
    if x.stride(1) == 1 and x.stride(0) % 8 == 0 and x.data_ptr() % 16 == 0:
        return x
    return x.clone(memory_format=torch.contiguous_format)


def _narrow(v: Tensor) -> tuple[Tensor, Tensor | None]:
    """v_nd in float16 and, where its channels were scaled for that, the largest magnitude of each."""
    if v.dtype == torch.float16:
        return v, None
    n, d = v.shape
    largest = torch.zeros(d, device=v.device)
    out = torch.empty((n, d), dtype=torch.float16, device=v.device)
    find, narrow = _narrowing(n, d, v.stride(0), v.device)
    find(v, largest)
    narrow(v, largest, out)
    return out, largest


@lru_cache(1 << 10)
def _narrowing(n: int, d: int, row: int, device: torch.device) -> tuple[Repeated, Repeated]:
    """What finds the largest magnitudes of n values of d channels whose rows lie so far apart, and what scales them."""
    slab = min(256, d & -d)
    tile = {"ROWS": 32, "SLAB": slab, "num_warps": 4}
    find = Repeated(largest_kernel, (ceil_div(n, _SHARE), d // slab), (n, row), {"SHARE": _SHARE, **tile}, device)
    return find, Repeated(narrow_kernel, (ceil_div(n, 32), d // slab), (n, row), {"DEPTH": d, **tile}, device)


def attend(q: Tensor, k: Tensor, v: Tensor, largest: Tensor | None, out: Tensor, scale: float, plan: Plan) -> None:
    """out_md = softmax(q_md·k_ndᵀ·scale)·v_nd, launched on the current stream without waiting for it.

    v is float16; ``largest`` undoes the scaling of its channels, see ``_narrow``.
    """
    (m, d), n = q.shape, len(k)
    factor = scale * math.log2(math.e)
    scratch = Scratch(m, n, d, q.device, plan)
    sampled = min(_SAMPLED, max(plan.columns, n // 32))
    sample = k[:: ceil_div(n, sampled) | 1]  # an odd step, so that it is no column of a picture
    values = _chunks(v, scratch.chunk)
    for begin in range(0, m, scratch.rows):
        queries, result = q[begin : begin + scratch.rows], out[begin : begin + scratch.rows]
        launch_peaks(queries, sample, scratch, factor, plan)
        for chunk in range(scratch.chunks):
            seen = slice(chunk * scratch.chunk, (chunk + 1) * scratch.chunk)
            launch_weights(queries, k[seen], scratch, chunk, factor, plan)
            launch_repair(queries, k[seen], scratch, chunk, factor, plan)
            add_product(scratch.wide, scratch.weights[:, : len(values[chunk])], values[chunk], chunk == 0)
        _launch_finish(scratch, largest, result)
    load_others(q[: scratch.rows], k[: scratch.chunk], values[0], scratch, factor, plan)


def _chunks(v: Tensor, size: int) -> list[Tensor]:
    """v_nd cut into chunks of so many keys, the last followed by zeros up to a multiple of ``KEYS``."""
    found, over = [*v.split(size)], len(v) % KEYS
    if over:
        last = found[-1]
        found[-1] = torch.cat([last, last.new_zeros((KEYS - over, v.shape[1]))])
    return found


def _launch_finish(scratch: Scratch, largest: Tensor | None, out: Tensor) -> None:
    sizes = *out.shape, scratch.chunks, scratch.tiles, scratch.share, out.stride(0), scratch.sums.stride(0)
    given = scratch.wide, scratch.sums, scratch.peaks, out if largest is None else largest, out
    _finish(*sizes, largest is not None, out.device)(*given)


@lru_cache(1 << 10)
def _finish(
    m: int, d: int, chunks: int, tiles: int, share: int, out_row: int, row: int, scaled: bool, device: torch.device
) -> Repeated:
    """For m results of d channels. out_row, row: values from one of them to the next, and of the scratch."""
    slab = min(256, d & -d)
    options = {"DEPTH": d, "SCALED": scaled, "BM": 32, "SLAB": slab, "num_warps": 4}
    numbers = m, chunks, tiles, share, out_row, row
    return Repeated(finish_kernel, (ceil_div(m, 32), d // slab), numbers, options, device)
