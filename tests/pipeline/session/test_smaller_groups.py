"""Calls that some of the ranks share, since there are too few rows for all: which of them comes first is no matter."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import torch
from gloo_ranks import in_ranks
from sharing_vae import SharingVAE, Z, agrees
from torch import distributed as dist

from tvae.pipeline import TiledVAE
from tvae.pipeline.session.smaller_groups import known_groups, smaller_group, time_out

PROCESSES = 4
GROUPS = (0, 1, 2, 3), (1, 2, 3)


def some(process: int, members: tuple[int, ...]) -> dist.ProcessGroup | None:
    if len(members) == PROCESSES:
        return dist.group.WORLD
    found: Any = dist.new_group([*members], timeout=timedelta(seconds=50))
    return found if process in members else None


def few_rows(process: int) -> dict[str, Any]:
    """Of two groups, the processes of which are in different numbers of others; two rows before three."""
    for _ in range(process):
        dist.new_group([process], use_local_synchronization=True)
    before, shared = known_groups(), list[int]()
    for members in GROUPS:
        group = some(process, members)
        if group is None:
            continue
        for _ in range(2):
            model = SharingVAE()
            vae = TiledVAE(model, group=group, strip=2)
            for rows in (2, 1, len(members) - 1, 2, 11):
                agrees(vae, model, "decode", Z[:, :, :rows])
            peers = vae._peers
            assert peers is not None
            fewer = {n: its for n in (2, 3) if n < peers.count and (its := peers.exchange(n)) is not None}
            assert all(time_out(its._group) == time_out(group) for its in fewer.values())  # type: ignore[attr-defined]
            shared += [its.ranks for its in fewer.values()]
    return {"shared": torch.tensor(shared), "groups": known_groups() - before - len(shared)}


@pytest.mark.slow
def test_groups_of_fewer_ranks_meet() -> None:
    """And no group is left beside them."""
    found = in_ranks(PROCESSES, few_rows)
    assert [one["shared"].tolist() for one in found] == [[2, 3] * 2, [2, 3] * 2 + [2] * 2, [3] * 2 + [2] * 2, []]
    assert [one["groups"] for one in found] == [0, 1, 1, 1]


def by_name(process: int) -> list[int]:
    """The second group has the members of the first, after some of those that were known have gone."""
    group = some(process, (1, 2, 3))
    if group is None:
        return []
    other = dist.new_group([process], use_local_synchronization=True) if process == 2 else None
    first = smaller_group(group, (0, 1), 9)
    if other is not None:
        dist.destroy_process_group(other)
    second = smaller_group(group, (0, 1), 10)
    sums = []
    for one in (first, second):
        if one is not None:
            total = torch.tensor([process])
            dist.all_reduce(total, group=one)
            sums.append(int(total))
    return sums


@pytest.mark.slow
def test_names_do_not_come_again() -> None:
    assert in_ranks(PROCESSES, by_name) == [[], [3, 3], [3, 3], []]
