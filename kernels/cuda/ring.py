"""The ring of shared-memory stages: how a map is cut in tiles and a block in threads, checked before anything runs.

A block walks over tiles, bands of whole pixels. ``stages`` of them have room in shared memory; ``prefetch`` of them are
on their way while one is consumed. Nothing here needs a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["FORMS", "VECTOR_BYTES", "Card", "Ring", "RingLayout", "geometry"]

FORMS = {"bulk": 9, "async": 8}
"""Form of the ring -> the compute capability it asks for: ``bulk`` has a producer warp and bulk copies, ``async`` every
thread's own copies of 16 bytes."""

VECTOR_BYTES = 16
"""What a thread takes at once, its group of channels."""

_WARP = 32
_CONSUMERS = 256
"""Threads that consume, about: as near to it as whole pixels allow."""
_RESERVED = 1024
"""Bytes of shared memory that the driver takes of every block."""


class Card(NamedTuple):
    """What a ring must know of a device; shared memory in bytes: at most per block, and of a multiprocessor."""

    capability: tuple[int, int]
    multiprocessors: int
    shared_block: int
    shared_multiprocessor: int


@dataclass(frozen=True)
class Ring:
    """The parameters of a ring: tile_bytes is what a tile of one map has at most (but one pixel at least), blocks what
    a multiprocessor runs at most. ValueError where they contradict each other.
    """

    stages: int = 4
    prefetch: int = 3
    tile_bytes: int = 16384
    blocks: int = 2

    def __post_init__(self) -> None:
        if self.stages < 2:
            raise ValueError(f"a ring has at least 2 stages, not {self.stages}")
        if not 1 <= self.prefetch < self.stages:
            raise ValueError(
                f"with {self.stages} stages, prefetch is 1 to {self.stages - 1} tiles, not {self.prefetch}: "
                "one stage holds the tile that is consumed"
            )
        if self.tile_bytes < VECTOR_BYTES:
            raise ValueError(f"a tile has at least {VECTOR_BYTES} bytes, not {self.tile_bytes}")
        if self.blocks < 1:
            raise ValueError(f"a multiprocessor runs at least 1 block, not {self.blocks}")


class RingLayout(NamedTuple):
    """How a sample's pixels are cut: tiles of ``tile`` pixels, ``per_run`` of them in a run of pixels; a pixel has
    ``groups`` of 16 bytes and a block takes ``lanes`` pixels at once; a block's threads; its shared memory in bytes.
    """

    tile: int
    per_run: int
    groups: int
    lanes: int
    threads: int
    shared: int


def geometry(
    size: tuple[int, int, int, int],
    element_bytes: int,
    maps: int,
    stats: bool,
    ring: Ring | None,
    form: str,
    card: Card,
) -> RingLayout:
    """The cut of size = (samples, outer, pixels, channels), for an operation that reads ``maps`` maps.

    A given ring is taken as it is: ValueError, with the numbers, where a block has not the shared memory. The default
    (None) takes smaller tiles on a card with less of it. Small maps get small tiles, so that every block has work.
    """
    samples, outer, pixels, channels = size
    chosen = ring or Ring()
    pixel_bytes = channels * element_bytes
    groups = pixel_bytes // VECTOR_BYTES
    lanes = max(1, round(_CONSUMERS / groups))
    threads = -(-groups * lanes // _WARP) * _WARP + (_WARP if form == "bulk" else 0)

    def shared(tile: int) -> int:
        barriers = -(-chosen.stages * 16 // 128) * 128 if form == "bulk" else 0
        reduction = (2 * lanes + 1) * channels * 4 if stats else 0
        return barriers + max(chosen.stages * maps * tile * pixel_bytes, reduction)

    tile = _whole(chosen.tile_bytes // pixel_bytes, lanes)
    while tile > lanes and samples * outer * -(-pixels // tile) < card.multiprocessors * chosen.blocks:
        tile = _whole(tile // 2, lanes)
    if ring is None:
        room = min(card.shared_block, card.shared_multiprocessor // chosen.blocks - _RESERVED)
        while tile > 1 and shared(tile) > room:
            tile = _whole(tile // 2, lanes)
    if shared(tile) > card.shared_block:
        raise ValueError(
            f"a ring of {chosen.stages} stages of {maps} x {tile * pixel_bytes} bytes takes {shared(tile)} bytes of "
            f"shared memory; a block of this card has at most {card.shared_block}"
        )
    return RingLayout(tile, -(-pixels // tile), groups, lanes, threads, shared(tile))


def _whole(tile: int, lanes: int) -> int:
    """At least 1 and at most ``tile`` pixels, without a last turn that leaves lanes idle where that can be had."""
    return max(1, tile - tile % lanes if tile > lanes else tile)
