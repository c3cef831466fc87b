"""Two cards share calls by NCCL, and one of them fails in the middle: the other is told, and both go on."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from unittest import mock

import pytest
import torch
from gloo_ranks import in_ranks
from shared_cards import SHAPE, recorded_runs, with_kernels_built
from tiny_vaes import relative_l2, result
from torch import distributed as dist

from tvae.pipeline import TiledVAE
from tvae.pipeline.engine.run.nccl_exchange import NcclExchange
from tvae.pipeline.engine.run.rank_rows import RankRows
from tvae.pipeline.errors import RankError
from tvae.pipeline.session.runner import RECORDED_AT, Runner
from tvae.pipeline.session.weights import PreparedWeights

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]
SOON = 15.0
"""Seconds; the group's time-out is 60."""
PLACES = {
    "run": (Runner, "run"),
    "between messages": (RankRows, "_merged"),
    "swap": (NcclExchange, "swap"),
    "after": (PreparedWeights, "digest"),
}


def failing_once(place: str) -> AbstractContextManager[Any]:
    owner, name = PLACES[place]
    do, errors = getattr(owner, name), [torch.OutOfMemoryError("no memory")]

    def instead(*args: Any, **more: Any) -> Any:
        if errors:
            raise errors.pop()
        return do(*args, **more)

    return mock.patch.object(owner, name, instead)


def told(vae: TiledVAE, x: torch.Tensor, place: str | None) -> str:
    """What a call tells this rank, which fails there, and how late that is."""
    begin = time.monotonic()
    try:
        with nullcontext() if place is None else failing_once(place):
            vae.decode(x)
        said = "nothing"
    except (RankError, torch.OutOfMemoryError) as raised:
        said = str(raised)
    took = time.monotonic() - begin
    return said if took < SOON else f"{said}, after {took:.0f} s"


def shared(rank: int, backend: str) -> tuple[list[str], list[torch.Tensor], int]:
    """What was told of failing calls, the results of good ones between them, and how many runs were recorded."""
    model = SHAPE.build().cuda().bfloat16()
    vae, x = TiledVAE(model, group=dist.group.WORLD), SHAPE.input("decode", 46, 30).cuda().bfloat16()
    with_kernels_built(vae, "decode", SHAPE.input("decode", 38, 22))
    said, found = [], [result(vae.decode(x)).cpu()]

    def fail(place: str) -> None:
        said.append(told(vae, x, place if rank == 1 else None))
        if backend == "nccl":  # it has no word at the end of a call
            said.append(told(vae, x, None))
        found.append(result(vae.decode(x)).cpu())

    for place in PLACES:
        fail(place)
    for _ in range(RECORDED_AT + 1):
        found.append(result(vae.decode(x)).cpu())
    recorded = recorded_runs(vae)
    fail("after")
    return said, found, recorded


@pytest.mark.parametrize("backend", ["cpu:gloo,cuda:nccl", "nccl"])
def test_the_other_card_is_told_and_both_go_on(backend: str) -> None:
    with torch.no_grad():
        want = result(SHAPE.build().double().decode(SHAPE.input("decode", 46, 30).double()))
    ranks = in_ranks(2, shared, backend, backend=backend)
    for rank, (said, found, recorded) in enumerate(ranks):
        assert recorded >= 1
        assert all(relative_l2(got, want) < 0.05 for got in found)
        if backend == "nccl":
            assert all(", after" not in text for text in said), (rank, said)
            assert all("OutOfMemoryError: no memory" in text for text in said[1::2]), (rank, said)
        else:
            wanted = "no memory" if rank == 1 else "rank 1 failed in this call: OutOfMemoryError: no memory"
            assert {*said} == {wanted}, (rank, said)
