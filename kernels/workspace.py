"""What the kernels of level ``triton`` hold beside their operands and results, for plans that count bytes."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = [
    "BAND",
    "CHUNK",
    "FEWEST_KEYS",
    "KEYS",
    "attends",
    "attention_bytes",
    "band_rows",
    "narrow_bytes",
    "product_rows",
]

_BLOCK, _TILE = 8448, 128
"""Queries whose weights exist at a time on a card of 132 multiprocessors (fewer have smaller blocks), a tile's keys."""
CHUNK = 16384
"""Keys whose weights exist at a time, at most. In chunks of half as many, attention of a picture of 1024x1024 has 19
starts in the place of 13, and on a slow host these last longer than the kernels run."""
KEYS = 8
"""The second product of attention is of a multiple of so many keys: with 16 bits that is what fast kernels read."""
FEWEST_KEYS = 2048
"""Keys from which on wide_attention beats PyTorch's attention; below, the launches cost more than they save."""
BAND = 1 << 20
"""Pixels of the result that ``conv_to_few`` computes at a time."""


def attends(itemsize: int, keys: int, depth: int) -> bool:
    """Is wide_attention computed here, of elements of so many bytes? Else it is as it is defined."""
    return itemsize == 2 and depth % 64 == 0 and 384 <= depth <= 1024 and keys >= FEWEST_KEYS


def attention_bytes(queries: int, keys: int, depth: int) -> int:
    """Of wide_attention: values in float16, the last chunk of them once more where zeros must follow; of a block of
    queries the weights in float16, their results in float32, and a sum for every tile of keys."""
    chunk = min(CHUNK, keys)
    values = 2 * depth * (keys + (chunk if keys % KEYS else 0))
    rows = min(_BLOCK, queries + queries // 4 + KEYS)  # as many as ``product_rows`` gives for any block up to this one
    return values + rows * (2 * chunk + 4 * depth + 4 * -(-keys // _TILE))


def product_rows(rows: int, block: int) -> int:
    """Rows of the second product for so many queries, at most ``block``: one of four numbers an octave.

    The BLAS library chooses among dozens of kernels by this number, and loads each when it is first chosen, which takes
    2.5 ms of a call (H200).
    """
    step = max(1, block // 8)
    while rows <= 4 * step and step > 1:
        step //= 2
    return min(block, step * -(-rows // step))


def band_rows(columns: int) -> int:
    """Rows of its result that conv_to_few computes at a time; 0 if even one is too wide."""
    return BAND // columns


def narrow_bytes(rows: int, columns: int, weight: Sequence[int]) -> int:
    """Of conv_to_few, for so many rows of its result, by the shape of its weight: a float32 plane for every tap and
    channel of the result."""
    few, _, high, wide = weight
    return 4 * few * high * wide * columns * (min(rows, band_rows(columns)) + high - 1)
