"""Groups of some of the processes that there are: their ranks have other numbers than the processes."""

from __future__ import annotations

import pytest
import torch
from gloo_ranks import in_ranks
from tiny_vaes import TINY, relative_l2, result
from torch import Tensor
from torch import distributed as dist

from tvae.pipeline import TiledVAE
from tvae.pipeline.engine.run.exchange import GroupExchange

PROCESSES = 3
MEMBERS = (1, 2), (0, 2), (0, 1, 2)


def in_groups(process: int) -> list[Tensor]:
    """Of each group that the process is in what all members tell, few numbers and many, and what the next one sends;
    then three pictures that the last two processes share. The first computes them by itself."""
    found = []
    for number, members in enumerate(MEMBERS):
        group = dist.new_group([*members])
        if process not in members:
            continue
        assert group is not None
        exchange = GroupExchange(group)
        mine = torch.tensor([process, number], dtype=torch.int64)
        later = exchange.gather_later(mine)
        found.append(torch.cat(exchange.gather(mine + 100)))
        found.append(torch.cat(later()))
        found.append(torch.cat(exchange.gather(mine.repeat(1000)))[:: 2 * 1000])
        there, came = (exchange.rank + 1) % exchange.ranks, torch.empty(2, dtype=torch.int64)
        exchange.swap([(there, mine)], [((exchange.rank - 1) % exchange.ranks, came)])
        found.append(came)
    group, tiny = dist.new_group([1, 2]), TINY["AutoencoderKL"]
    model, x = tiny.build(), tiny.input("decode", 14, 6)
    vae = TiledVAE(model, group=group) if process else TiledVAE(model)
    with torch.no_grad():
        return [*found, *(result(vae.decode(x * (n + 1))) for n in range(3))]


@pytest.fixture(scope="module")
def results() -> list[list[Tensor]]:
    return in_ranks(PROCESSES, in_groups)


@pytest.mark.slow
def test_members_are_told_apart_by_their_number_in_the_group(results: list[list[Tensor]]) -> None:
    for process, (*found, _, _, _) in enumerate(results):
        mine = [(number, members) for number, members in enumerate(MEMBERS) if process in members]
        assert len(found) == 4 * len(mine)
        for n, (number, members) in enumerate(mine):
            few, later, many, came = found[4 * n : 4 * n + 4]
            assert few.tolist() == [each for member in members for each in (member + 100, number + 100)]
            assert later.tolist() == [each for member in members for each in (member, number)]
            assert many.tolist() == [*members]
            assert came.tolist() == [members[(members.index(process) - 1) % len(members)], number]


@pytest.mark.slow
def test_a_call_is_shared_by_some_of_the_processes(results: list[list[Tensor]]) -> None:
    tiny = TINY["AutoencoderKL"]
    model, x = tiny.build().double(), tiny.input("decode", 14, 6).double()
    with torch.no_grad():
        exact = [result(model.decode(x * (n + 1))) for n in range(3)]
    for found in results:
        assert all(relative_l2(got, want) <= 1e-5 for got, want in zip(found[-3:], exact, strict=True))
