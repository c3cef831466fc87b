"""An op whose whole reads flow by through the ring, some rows at a time (the keys and values of an attention)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from tvae.pipeline.engine.ir.program import Parts, Read
from tvae.pipeline.engine.plan.bounds import Rows
from tvae.pipeline.engine.plan.schedule import PREFETCH, STAGES
from tvae.pipeline.engine.run.ring import Ring
from tvae.pipeline.engine.run.storage import Boundary

__all__ = ["attend_in_chunks"]


def attend_in_chunks(
    parts: Parts, read: Read, rows: Rows, ranges: Sequence[Rows], away: Mapping[int, Boundary]
) -> Tensor:
    """Rows of the op. ranges: of those that flow by, in order; what comes from elsewhere is fetched ahead."""
    here = [i for i in parts.over if i in away]
    ring = Ring(away, [dict.fromkeys(here, some) for some in ranges], STAGES, PREFETCH)
    all_: Any = None
    for first, last in ranges:
        found = ring.take()

        def read_part(id_: int, a: int | None = None, b: int | None = None, /) -> Tensor:
            return found[id_] if id_ in found else read(id_, a, b)  # noqa: B023

        part = parts.part(read_part, *rows, first, last)
        all_ = part if all_ is None else parts.merge(all_, part)
        found = {}
    return parts.finish(all_)
