"""Messages that travel in rounds are those that travel one by one. Processes with gloo between them, on which one round
is sent by a stand-in: gloo's own wants one size for all."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from drawn_messages import drawn, sent
from gloo_ranks import in_ranks
from gloo_rounds import one_round
from torch import Tensor
from torch import distributed as dist

from tvae.pipeline.engine.run.exchange import GroupExchange
from tvae.pipeline.engine.run.nccl_exchange import NcclExchange

RANKS = 3


def every_way(rank: int) -> list[Tensor]:
    """What arrives in rounds and one by one, with parts of larger buffers among them."""
    assert dist.group.WORLD is not None
    nccl, plain, found = NcclExchange(dist.group.WORLD), GroupExchange(dist.group.WORLD), []
    for seed in range(12):
        messages = drawn(seed, RANKS, 40)
        for swap in (nccl.in_rounds, nccl.swap, plain.swap):  # the second finds that nothing lies on a GPU
            mine = [(a, torch.zeros(size + 2, dtype=dtype)) for a, b, size, dtype in messages if b == rank]
            gone = sent(messages, rank)
            if mine or gone:
                with mock.patch.object(dist, "all_to_all", one_round):
                    swap(gone, [(a, buffer[1:-1]) for a, buffer in mine])
            found.append(torch.cat([torch.zeros(1).double(), *(buffer.double() for _, buffer in mine)]))
    return found


def gathered(rank: int) -> list[Tensor]:
    assert dist.group.WORLD is not None
    part = torch.arange(6, dtype=torch.float64).view(2, 3).t() + 10 * rank  # not in one piece
    found = [*NcclExchange(dist.group.WORLD).gather(part), *GroupExchange(dist.group.WORLD).gather(part.contiguous())]
    return [t.clone() for t in found]


@pytest.mark.long
def test_what_is_gathered_comes_in_the_order_of_ranks() -> None:
    for found in in_ranks(RANKS, gathered):
        for rank, (mine, plain) in enumerate(zip(found[:RANKS], found[RANKS:], strict=True)):
            assert torch.equal(mine, plain)
            assert mine[0, 0] == 10 * rank


@pytest.mark.long
def test_the_same_arrives_in_rounds() -> None:
    for found in in_ranks(RANKS, every_way):
        for together, on_cpu, apart in zip(found[::3], found[1::3], found[2::3], strict=True):
            assert torch.equal(together, apart)
            assert torch.equal(on_cpu, apart)
        assert sum(float(each.abs().sum()) for each in found) > 0
