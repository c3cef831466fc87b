"""Messages between GPUs arrive, however large each rank's are, and whether a rank records them or not."""

from __future__ import annotations

import pytest
import torch
from drawn_messages import drawn, sent
from gloo_ranks import in_ranks
from torch import Tensor
from torch import distributed as dist

from tvae.pipeline.engine.run.nccl_exchange import NcclExchange

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]

MOST = 3 << 20
"""Elements of a message: up to 24 MiB."""


def arrived(rank: int, ranks: int) -> list[Tensor]:
    """What arrives for each seed, when it is started and when it is replayed. Each rank records by its own mind."""
    assert dist.group.WORLD is not None
    exchange, found = NcclExchange(dist.group.WORLD), []
    for seed in range(16):
        messages = drawn(seed, ranks, MOST if seed % 2 else 40)
        gone = sent(messages, rank, "cuda")
        mine = [(a, torch.zeros(size, dtype=dtype, device="cuda")) for a, b, size, dtype in messages if b == rank]
        if gone or mine:
            exchange.swap(gone, mine)
        torch.cuda.synchronize()
        dist.barrier()
        for _, t in mine:
            found.append(t.cpu())
            t.zero_()
        if (seed + rank) % 3 == 0 and (gone or mine):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                exchange.swap(gone, mine)
            graph.replay()
        elif gone or mine:
            exchange.swap(gone, mine)
        torch.cuda.synchronize()
        dist.barrier()
        found += [t.cpu() for _, t in mine]
    return found


def test_all_that_is_sent_arrives() -> None:
    ranks = torch.cuda.device_count()
    for rank, found in enumerate(in_ranks(ranks, arrived, ranks, backend="nccl")):
        wanted = []
        for seed in range(16):
            messages = drawn(seed, ranks, MOST if seed % 2 else 40)
            kept = [dict(enumerate(sent(messages, a))) for a in range(ranks)]
            mine = []
            for a, b, _, _ in messages:
                number = min(kept[a])
                to, content = kept[a].pop(number)
                assert to == b
                if b == rank:
                    mine.append(content)
            wanted += [*mine, *mine]
        assert len(found) == len(wanted)
        assert all(torch.equal(got, want) for got, want in zip(found, wanted, strict=True))
