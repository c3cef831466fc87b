"""What ranks agree on before they compute."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from weakref import WeakKeyDictionary

import pytest
import torch
from torch import distributed as dist

from tvae.pipeline.engine.ir.axis import Axis
from tvae.pipeline.engine.run.exchange import GroupExchange
from tvae.pipeline.engine.run.nccl_exchange import NcclExchange, exchange_of
from tvae.pipeline.engine.run.thread_exchange import Meeting, ThreadExchange
from tvae.pipeline.errors import PlanError, TvaeError, UsageError
from tvae.pipeline.session.choose_plan import Room
from tvae.pipeline.session.failed_call import FailedCall
from tvae.pipeline.session.peers import Peers, same_call
from tvae.pipeline.session.thread_peers import ThreadPeers
from tvae.pipeline.session.words import Words


class PlainPeers(ThreadPeers):
    """Threads that agree as processes do."""

    least = Peers.least
    _why_failed = Peers._why_failed


def least(kind: type[ThreadPeers], *found: Room | TvaeError) -> list[Any]:
    """What each rank is told or raises."""
    meeting = Meeting(len(found))

    def one(rank: int) -> Any:
        def its() -> Room:
            mine = found[rank]
            if isinstance(mine, TvaeError):
                raise mine
            return mine

        try:
            return kind(meeting, rank).least(its)
        except TvaeError as error:
            return error

    with ThreadPoolExecutor(len(found)) as threads:
        return [*threads.map(one, range(len(found)))]


@pytest.mark.parametrize("kind", [PlainPeers, ThreadPeers])
def test_the_least_of_each(kind: type[ThreadPeers]) -> None:
    assert least(kind, (5, None), (3, 7), (4, None)) == [(3, 7)] * 3
    assert least(kind, (0, None), (None, None)) == [(0, None)] * 2
    assert least(kind, (None, None), (None, None)) == [(None, None)] * 2


@pytest.mark.parametrize("error", [PlanError("too little", 9), UsageError("unknown")])
def test_what_one_refuses_all_refuse(error: TvaeError) -> None:
    """In the same way: after a PlanError all try another plan. Threads are told the very error."""
    first, second, third = least(PlainPeers, (5, None), error, (4, 4))
    assert second is error
    assert {type(first), type(third)} == {type(error)}
    assert str(first) == "rank 1 cannot take part; its own message says why"
    assert least(ThreadPeers, (5, None), error, (4, 4)) == [error] * 3


@pytest.mark.parametrize("first_only", [False, True])
def test_who_has_the_whole(first_only: bool) -> None:
    """Three ranks, of which the last has no rows."""
    x, own = torch.randn(2, 3, 7, 4), [(0, 3), (3, 7), (7, 7)]
    meeting = Meeting(3)

    def one(rank: int) -> torch.Tensor:
        peers = ThreadPeers(meeting, rank)
        peers.first_only = first_only
        return peers.whole(x[:, :, slice(*own[rank])], Axis(2, 1, 7, 1), own, channels_last=False)

    with ThreadPoolExecutor(3) as threads:
        first, *others = threads.map(one, range(3))
    assert torch.equal(first, x)
    wanted = [x[:, :, slice(*rows)] if first_only else x for rows in own[1:]]
    assert all(map(torch.equal, others, wanted))


class OneRank(Peers):
    """Of a group that is not there. said: what was compared."""

    def __init__(self, on_host: bool) -> None:
        self._models, self._numbers_of_models = WeakKeyDictionary(), itertools.count()
        self._on_host, self.said = on_host, list[list[str]]()
        self._words = Words(None, ThreadExchange(Meeting(1), 0, 1), on_host=on_host)
        self.failed = FailedCall(self._words, told_at_end=on_host)

    def _check(self, names: Sequence[str], every: list[list[int]]) -> list[list[int]]:
        self.said.append([*names])
        return super()._check(names, every)


@pytest.mark.parametrize(("on_host", "before", "after"), [(True, 3, 1), (False, 4, 0)])
def test_inputs_are_compared_beside_the_run(on_host: bool, before: int, after: int) -> None:
    peers, session = OneRank(on_host), torch.nn.Identity()
    with same_call(peers, session, "decode", [torch.randn(2, 3)], None) as told:
        assert not peers.said
        told.agree()
        assert sum(map(len, peers.said)) == before
    assert sum(map(len, peers.said)) == before + after


def test_a_call_that_fails_waits_for_nobody() -> None:
    peers, session = OneRank(True), torch.nn.Identity()

    def fails() -> None:
        with same_call(peers, session, "decode", [torch.randn(2, 3)], None) as told:
            told.agree()
            raise PlanError("too little", 9)

    with pytest.raises(PlanError):
        fails()
    assert len(peers.said) == 1


@pytest.mark.parametrize(("config", "kind"), [("cpu:gloo,cuda:nccl", NcclExchange), ("cpu:gloo", GroupExchange)])
def test_groups_whose_backend_nobody_named(config: str, kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a group has NCCL for GPUs, and its backend's name is 'undefined'."""
    found = {"get_backend_config": config, "get_backend": "undefined", "get_rank": 0, "get_world_size": 1}
    for name, value in found.items():
        monkeypatch.setattr(dist, name, lambda _, value=value: value)
    monkeypatch.setattr(dist, "get_global_rank", lambda _, n: n)
    group: Any = object()
    assert type(exchange_of(group)) is kind
