"""Messages that travel in one call are those that travel one by one. Processes with gloo between them: it knows the
same call."""

from __future__ import annotations

import random

import torch
from gloo_ranks import in_ranks
from torch import Tensor
from torch import distributed as dist

from tvae.pipeline.engine.run.exchange import GroupExchange, Message
from tvae.pipeline.engine.run.nccl_exchange import NcclExchange

RANKS = 3
DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.uint8)


def plan(seed: int) -> list[tuple[int, int, int, torch.dtype]]:
    """From, to, number of elements, type. The last rank may get nothing, and the second have nothing to say."""
    draw = random.Random(seed)
    others = [(0, 1), (0, 2), (1, 0), (1, 2), (2, 1)]
    chosen = [(0, 1), (2, 0), *draw.choices(others, k=draw.randint(0, 6))]
    draw.shuffle(chosen)
    return [(a, b, draw.randint(1, 40), draw.choice(DTYPES)) for a, b in chosen]


def sent(messages: list[tuple[int, int, int, torch.dtype]], rank: int) -> list[Message]:
    def content(n: int, size: int, dtype: torch.dtype) -> Tensor:
        return torch.randint(256, (size,), generator=torch.Generator().manual_seed(n)).to(dtype)

    return [(b, content(n, size, dtype)) for n, (a, b, size, dtype) in enumerate(messages) if a == rank]


def every_way(rank: int) -> list[Tensor]:
    """What arrives in one call and one by one, with a part of a larger buffer among them."""
    assert dist.group.WORLD is not None
    nccl, plain, found = NcclExchange(dist.group.WORLD), GroupExchange(dist.group.WORLD), []
    for seed in range(12):
        messages = plan(seed)
        for swap in (nccl.at_once, nccl.swap, plain.swap):  # the second finds that nothing lies on a GPU
            mine = [(a, torch.zeros(size + 2, dtype=dtype)) for a, b, size, dtype in messages if b == rank]
            swap(sent(messages, rank), [(a, buffer[1:-1]) for a, buffer in mine])
            found.append(torch.cat([torch.zeros(1).double(), *(buffer.double() for _, buffer in mine)]))
    return found


def test_the_same_arrives_in_one_call() -> None:
    for found in in_ranks(RANKS, every_way):
        for together, on_cpu, apart in zip(found[::3], found[1::3], found[2::3], strict=True):
            assert torch.equal(together, apart)
            assert torch.equal(on_cpu, apart)
        assert sum(float(each.abs().sum()) for each in found) > 0
