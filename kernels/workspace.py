"""What the kernels of level ``triton`` hold beside their operands and results, for plans that count bytes."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["BAND", "attention_bytes", "band_rows", "chunk_of", "narrow_bytes"]

_BLOCK, _TILE = 8448, 128
"""Queries whose weights exist at a time on a card of 132 multiprocessors (fewer have smaller blocks), a tile's keys."""
_MANY = 65536
"""Keys from which on starting the kernels can last longer than they run, on a slow host: fewer chunks, fewer starts."""
BAND = 1 << 20
"""Pixels of the result that ``conv_to_few`` computes at a time."""


def attention_bytes(queries: int, keys: int, depth: int) -> int:
    """Of wide_attention: values in float16; of a block of queries the weights in float16, their results in float32, and
    a sum for every tile of keys."""
    return 2 * keys * depth + min(queries, _BLOCK) * (2 * min(chunk_of(keys), keys) + 4 * depth + 4 * -(-keys // _TILE))


def chunk_of(keys: int) -> int:
    """Keys whose weights exist at a time."""
    return 8192 if keys < _MANY else 16384


def band_rows(columns: int) -> int:
    """Rows of its result that conv_to_few computes at a time; 0 if even one is too wide."""
    return BAND // columns


def narrow_bytes(rows: int, columns: int, weight: Sequence[int]) -> int:
    """Of conv_to_few, for so many rows of its result, by the shape of its weight: a float32 plane for every tap and
    channel of the result."""
    few, _, high, wide = weight
    return 4 * few * high * wide * columns * (min(rows, band_rows(columns)) + high - 1)
