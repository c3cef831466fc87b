"""A whole clip in steps, into one tensor."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor

from tvae.pipeline.engine.ir.axis import crop
from tvae.pipeline.engine.run.empty_run import META, no_numbers
from tvae.pipeline.engine.run.storage import OwnRows
from tvae.pipeline.models.streaming import Cache
from tvae.pipeline.session.clip_steps import ClipSteps, last_is_alone
from tvae.pipeline.session.peers import Peers
from tvae.pipeline.session.recorded_clip import RunStep

__all__ = ["whole_clip"]


def whole_clip(
    steps: ClipSteps, run: RunStep, x: Tensor, like: Tensor, peers: Peers | None, *, channels_last: bool
) -> Tensor:
    """Moments [N, 2C, t, h, w] or pixels, in the type of ``like`` and where that is. run: makes a step. peers: other
    ranks that make the same steps; each then has its own rows of the result, until all are put together.
    """
    sizes = [*steps.cuts.sizes(steps.cuts.used(x.shape[2]))]
    shape = steps.result_shape(tuple(x.shape), sizes)
    result = None if peers else torch.empty(shape, dtype=like.dtype, device=like.device)
    caches: list[Cache] = []
    own: OwnRows | None = None
    at, to = 0, 0
    for n, size in enumerate(sizes):
        last = n == len(sizes) - 1 and last_is_alone(sizes)
        given, caches = caches, []  # a step lets go of each as soon as it has done with it
        part, *caches = run(x[:, :, at : at + size], given, last)
        if n == 0:
            own = part if isinstance(part, OwnRows) else None
        rows = _as_first(part, own, peers, channels_last)
        with nullcontext() if peers is None else peers.failed.kept():
            if result is None:
                result = torch.empty((*shape[:3], *rows.shape[3:]), dtype=like.dtype, device=like.device)
            result[:, :, to : to + rows.shape[2]] = rows
        at, to = at + size, to + rows.shape[2]
        if result is None and n == len(sizes) - 1:
            result = no_numbers(torch.empty((*shape[:3], *rows.shape[3:]), dtype=like.dtype, device=META), like.device)
        del part, rows  # the next step is computed without them
    assert result is not None
    assert to == shape[2]
    if own is not None:
        assert peers is not None
        if peers.gather:
            return peers.whole(result, own.axis, own.own, channels_last=channels_last)
    elif peers is not None and not peers.gather and peers.rank:
        return result[:, :, :, :0]  # nothing was divided: the first rank has all
    return result


def _as_first(part: Cache, first: OwnRows | None, peers: Peers | None, channels_last: bool) -> Tensor:
    """Of a step's result those rows that this rank has of the first step's: not every step can be shared."""
    if isinstance(part, OwnRows) and first is None:
        assert peers is not None
        return peers.whole(part.rows, part.axis, part.own, channels_last=channels_last, everywhere=True)
    rows = part.rows if isinstance(part, OwnRows) else part
    assert isinstance(rows, Tensor)
    if first is None or isinstance(part, OwnRows):
        return rows
    assert peers is not None
    return crop(rows, first.axis, *first.own[peers.rank])
