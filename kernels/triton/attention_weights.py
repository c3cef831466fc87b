"""The first product of ``wide_attention``: the weights of a block of queries against a chunk of keys.

Legend: q_md and k_nd are queries and keys of one head; scores are in powers of two, that is q·kᵀ·scale·
log2(e); a tile is [BM, BN] scores, what a program computes at a time. Weights are 2^(score - peak of the row), float16.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tvae.kernels.triton.device import exp2
from tvae.kernels.workspace import KEYS

__all__ = ["FEW", "HEADROOM", "LIFT", "STEP", "peaks_kernel", "repair_kernel", "weights_kernel"]

LIFT = tl.constexpr(3.0)
"""The peak of a row lies so far below the largest score known: tiny weights keep their digits in float16."""
HEADROOM = tl.constexpr(15.9)
"""Scores so far above the peak still give a finite float16."""
STEP = tl.constexpr(KEYS)
"""Weights of keys that there are not, up to a multiple of so many, are stored as zeros."""
FEW = tl.constexpr(10.0)
"""A row's largest weight is one of a few that matter if so many times it exceeds what the tiles' largest add up to."""


@triton.jit
def _rows_of(
    source: tl.tensor,
    row: tl.tensor,
    column: tl.tensor,
    stride: tl.tensor,
    rows: tl.tensor,
    TMA: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
) -> tl.tensor:
    """source[row : row + BLOCK, column : column + WIDTH], zero beyond its rows; a tensor descriptor or a pointer."""
    if TMA:
        found = source.load([row, column])
    else:
        at = row + tl.arange(0, BLOCK)
        where = at.to(tl.int64)[:, None] * stride + (column + tl.arange(0, WIDTH))[None, :]
        found = tl.load(source + where, mask=(at < rows)[:, None], other=0.0)
    return found


@triton.jit
def _scores(
    q: tl.tensor,
    k: tl.tensor,
    row: tl.tensor,
    column: tl.tensor,
    m: tl.tensor,
    n: tl.tensor,
    q_stride: tl.tensor,
    k_stride: tl.tensor,
    DEPTH: tl.constexpr,
    TMA: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
) -> tl.tensor:
    """A tile of q·kᵀ in float32."""
    scores = tl.zeros((BM, BN), tl.float32)
    for depth in range(0, DEPTH, BK):
        queries = _rows_of(q, row, depth, q_stride, m, TMA, BM, BK)
        keys = _rows_of(k, column, depth, k_stride, n, TMA, BN, BK)
        scores = tl.dot(queries, keys.T, scores)
    return scores


@triton.jit
def _halves(x: tl.tensor, ROWS: tl.constexpr, COLUMNS: tl.constexpr) -> tl.tensor:
    """The left and the right half of the columns."""
    return tl.split(tl.permute(tl.reshape(x, (ROWS, 2, COLUMNS // 2)), (0, 2, 1)))


@triton.jit
def _store_part(
    p: tl.tensor,
    scores: tl.tensor,
    peak: tl.tensor,
    row: tl.tensor,
    column: tl.tensor,
    m: tl.tensor,
    n: tl.tensor,
    stride: tl.tensor,
    factor: tl.tensor,
    TMA: tl.constexpr,
    MASK: tl.constexpr,
    BM: tl.constexpr,
    WIDTH: tl.constexpr,
) -> tl.tensor:
    """Store the weights of WIDTH columns at p[row, column]; their sums and the largest score - peak, per row."""
    above = scores * factor - peak[:, None]
    columns = column + tl.arange(0, WIDTH)
    if MASK:
        above = tl.where((columns < n)[None, :], above, float("-inf"))
    weights = exp2(above)
    narrow = weights.to(tl.float16)
    if TMA:  # up to where the descriptor of p ends
        p.store([row, column], narrow)
    else:
        at = row + tl.arange(0, BM)
        where = at.to(tl.int64)[:, None] * stride + columns[None, :]
        tl.store(p + where, narrow, mask=(at < m)[:, None] & (columns < tl.cdiv(n, STEP) * STEP)[None, :])
    return tl.sum(weights, 1), tl.max(above, 1)


@triton.jit
def _store_weights(
    p: tl.tensor,
    scores: tl.tensor,
    peak: tl.tensor,
    row: tl.tensor,
    column: tl.tensor,
    m: tl.tensor,
    n: tl.tensor,
    stride: tl.tensor,
    factor: tl.tensor,
    TMA: tl.constexpr,
    MASK: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    SLICES: tl.constexpr,
) -> tl.tensor:
    """``_store_part`` for all columns of a tile, in 1, 2 or 4 slices, which bounds the shared memory that takes."""
    if SLICES == 1:
        total, top = _store_part(p, scores, peak, row, column, m, n, stride, factor, TMA, MASK, BM, BN)
    else:
        half: tl.constexpr = BN // 2
        left, right = _halves(scores, BM, BN)
        total, top = _store_weights(p, left, peak, row, column, m, n, stride, factor, TMA, MASK, BM, half, SLICES // 2)
        more, higher = _store_weights(
            p, right, peak, row, column + half, m, n, stride, factor, TMA, MASK, BM, half, SLICES // 2
        )
        total += more
        top = tl.maximum(top, higher)
    return total, top


@triton.jit(do_not_specialize=["m", "n"])
def peaks_kernel(
    q: tl.tensor,
    k: tl.tensor,
    peaks: tl.tensor,
    m: tl.tensor,
    n: tl.tensor,
    factor: tl.tensor,
    q_stride: tl.tensor,
    k_stride: tl.tensor,
    DEPTH: tl.constexpr,
    TMA: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
) -> None:
    """The first peaks, [m], from a sample of the keys."""
    row = tl.program_id(0) * BM
    top = tl.full((BM,), float("-inf"), tl.float32)
    for column in range(0, n, BN):
        scores = _scores(q, k, row, column, m, n, q_stride, k_stride, DEPTH, TMA, BM, BN, BK) * factor
        scores = tl.where((column + tl.arange(0, BN) < n)[None, :], scores, float("-inf"))
        top = tl.maximum(top, tl.max(scores, 1))
    rows = row + tl.arange(0, BM)
    tl.store(peaks + rows, top - LIFT, mask=rows < m)


@triton.jit(do_not_specialize=["m", "n"])
def weights_kernel(
    q: tl.tensor,
    k: tl.tensor,
    p: tl.tensor,
    peaks: tl.tensor,
    sums: tl.tensor,
    tops: tl.tensor,
    m: tl.tensor,
    n: tl.tensor,
    factor: tl.tensor,
    q_stride: tl.tensor,
    k_stride: tl.tensor,
    p_stride: tl.tensor,
    stride: tl.tensor,
    DEPTH: tl.constexpr,
    MASK: tl.constexpr,
    TMA: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    GROUP: tl.constexpr,
    SLICES: tl.constexpr,
    FLAT: tl.constexpr,
) -> None:
    """p = 2^(q·kᵀ·factor - peaks), [m, n], its sums and the largest exponents per row and tile, [n / BN, m].

    With TMA q, k and p are tensor descriptors, else pointers with a row stride. MASK: n is no multiple of BN.
    """
    tiles_m, tiles_n = tl.cdiv(m, BM), tl.cdiv(n, BN)
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, tl.num_programs(0), flatten=FLAT):
        # GROUP tiles of queries take turns with one tile of keys: both stay in the L2 cache
        first = tile // (GROUP * tiles_n) * GROUP
        size = tl.minimum(tiles_m - first, GROUP)
        row = (first + tile % (GROUP * tiles_n) % size) * BM
        tile_n = tile % (GROUP * tiles_n) // size
        column = tile_n * BN
        scores = _scores(q, k, row, column, m, n, q_stride, k_stride, DEPTH, TMA, BM, BN, BK)
        rows = row + tl.arange(0, BM)
        peak = tl.load(peaks + rows, mask=rows < m, other=0.0)
        total, top = _store_weights(p, scores, peak, row, column, m, n, p_stride, factor, TMA, MASK, BM, BN, SLICES)
        where = tile_n.to(tl.int64) * stride + rows
        tl.store(sums + where, total, mask=rows < m)
        tl.store(tops + where, top, mask=rows < m)


@triton.jit(do_not_specialize=["m", "n", "first", "share"])
def repair_kernel(
    q: tl.tensor,
    k: tl.tensor,
    p: tl.tensor,
    peaks: tl.tensor,
    raised: tl.tensor,
    sums: tl.tensor,
    tops: tl.tensor,
    wide: tl.tensor,
    m: tl.tensor,
    n: tl.tensor,
    first: tl.tensor,
    share: tl.tensor,
    factor: tl.tensor,
    q_stride: tl.tensor,
    k_stride: tl.tensor,
    p_stride: tl.tensor,
    stride: tl.tensor,
    DEPTH: tl.constexpr,
    MASK: tl.constexpr,
    TMA: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    SLICES: tl.constexpr,
    EVEN: tl.constexpr,
) -> None:
    """Raise the peaks that were too low for ``weights_kernel``, and compute those rows' weights and sums again.

    A program looks after BM rows and ``share`` tiles of keys; where no row's largest exponent (``tops``) leaves float16
    it ends there. ``raised`` takes the peaks as used. What earlier chunks left in wide (not the ``first``) is scaled
    down. EVEN: where few weights matter, the largest becomes a power of two, too, of which nothing is rounded away.
    """
    row = tl.program_id(0) * BM
    rows = row + tl.arange(0, BM)
    inside = rows < m
    tiles = tl.cdiv(n, BN)
    top = tl.full((BM,), float("-inf"), tl.float32)
    largest = tl.zeros((BM,), tl.float32)  # of the tiles, added up
    for start in range(0, tiles, 16):
        tile = start + tl.arange(0, 16)
        where = tile.to(tl.int64)[:, None] * stride + rows[None, :]
        mask = (tile < tiles)[:, None] & inside[None, :]
        found = tl.load(tops + where, mask=mask, other=float("-inf"))
        top = tl.maximum(top, tl.max(found, 0))
        if EVEN:
            largest += tl.sum(exp2(found), 0)
    old = tl.load(peaks + rows, mask=inside, other=0.0)
    low = top > HEADROOM
    peak = tl.where(low, old + (top - LIFT), old)
    if EVEN:
        uneven = top - tl.floor(top)
        moved = (top >= 1.0) & (top <= HEADROOM) & (uneven > 0.0) & (exp2(top) * FEW > largest)
        peak = tl.where(moved, old + uneven, peak)
        low = low | moved
    if tl.program_id(1) == 0:
        tl.store(raised + rows, peak, mask=inside)
    if tl.max(low.to(tl.int32), 0) > 0:
        if (tl.program_id(1) == 0) & (first == 0):
            for column in range(0, DEPTH, 64):
                at = wide + rows.to(tl.int64)[:, None] * DEPTH + (column + tl.arange(0, 64))[None, :]
                values = tl.load(at, mask=inside[:, None], other=0.0)
                tl.store(at, values * exp2(old - peak)[:, None], mask=inside[:, None])
        begin = tl.program_id(1) * share
        for tile in range(begin, tl.minimum(begin + share, tiles)):
            column = tile * BN
            scores = _scores(q, k, row, column, m, n, q_stride, k_stride, DEPTH, TMA, BM, BN, BK)
            total, top = _store_weights(p, scores, peak, row, column, m, n, p_stride, factor, TMA, MASK, BM, BN, SLICES)
            tl.store(sums + tl.cast(tile, tl.int64) * stride + rows, total, mask=inside)
