"""Chunked attention: keys and values come through the ring some rows at a time; the partial results are merged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from tvae.pipeline.engine.ir.program import Chunked, Read
from tvae.pipeline.engine.plan.bounds import Rows
from tvae.pipeline.engine.plan.schedule import PREFETCH, STAGES
from tvae.pipeline.engine.run.ring import Ring
from tvae.pipeline.engine.run.storage import Boundary

__all__ = ["attend_in_chunks"]


def attend_in_chunks(
    chunked: Chunked, read: Read, rows: Rows, ranges: Sequence[Rows], away: Mapping[int, Boundary]
) -> Tensor:
    """Rows of the op. ranges: of keys and values, in order; those that live elsewhere are prefetched."""
    here = [i for i in chunked.sources if i in away]
    ring = Ring(away, [dict.fromkeys(here, some) for some in ranges], STAGES, PREFETCH)
    all_: Any = None
    try:
        for first, last in ranges:
            found = ring.take()

            def read_chunk(id_: int, a: int | None = None, b: int | None = None, /) -> Tensor:
                return found[id_] if id_ in found else read(id_, a, b)  # noqa: B023

            its = chunked.partial(read_chunk, *rows, first, last)
            all_ = its if all_ is None else chunked.merge(all_, its)
            found = {}
    finally:
        ring.drain()
    return chunked.finish(all_)
