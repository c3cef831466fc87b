"""What recordings may take, when they are made, and which go. On a card: tests/gpu/test_recordings.py."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from small_models import Residual, built, graph_of, image
from torch import Tensor

from tvae.kernels.definitions import definitions_alone
from tvae.pipeline.engine.lower import lower
from tvae.pipeline.engine.plan.schedule import schedule
from tvae.pipeline.session import kept_runs, runner
from tvae.pipeline.session.kept_runs import RECORDED_MOST, RECORDED_ROOM, RECORDED_SHARE, KeptRuns, drop_recordings
from tvae.pipeline.session.pace import Pace
from tvae.pipeline.session.runner import RECORDED_AHEAD, RECORDED_AT, Runner

MIB = 1 << 20
CARD = torch.device("cuda", 0)


class Card:
    """In the place of a card of 100 GiB: a recording takes ``pool`` bytes of it, and ``copied`` beside."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, pool: int = 0, copied: int = 0) -> None:
        self.pool, self.copied, self.kept, self.made, self.total = pool, copied, 0, 0, 100 << 30
        stands = {"Recording": self.record, "RecordingPool": lambda _: SimpleNamespace(id=(0, 1))}
        for name, value in {**stands, "recorded_segments": lambda *_: [{"total_size": self.kept}]}.items():
            monkeypatch.setattr(kept_runs, name, value)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (self.total, self.total))
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: self.kept)
        self.share, self.fails = 1.0, ""
        monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda _: self.share)
        monkeypatch.setattr(
            torch.cuda, "set_per_process_memory_fraction", lambda share, _: setattr(self, "share", share)
        )

    def limit(self, share: float, _: Any) -> None:
        self.share = share

    def record(
        self,
        run: Callable[[Sequence[Tensor]], list[Tensor]],
        inputs: Sequence[Tensor],
        _: Any,
        kept: Sequence[Tensor] = (),
    ) -> Any:
        self.made += 1
        self.share_within = self.share
        self.kept += self.pool
        if self.fails:
            raise torch.OutOfMemoryError(self.fails)
        fixed = [*(torch.empty_like(x, device="cpu") for x in inputs), *kept]

        def replay(given: Sequence[Tensor]) -> list[Tensor]:
            for ours, theirs in zip(fixed, given, strict=True):
                ours.copy_(theirs)
            return run(fixed)

        return SimpleNamespace(copied_bytes=self.copied, replay=replay)


class Owner:
    """Has a recording while ``has``."""

    def __init__(self) -> None:
        self.has = False

    def drop_recording(self) -> None:
        self.has = False

    def record(self, runs: KeptRuns, size: int, carried: int = 0) -> None:
        runs.record(self, lambda _: [], [], size, carried)
        self.has = True


def runner_for(x: Tensor, plainly: Callable[[], bool] | None = None) -> Runner:
    graph = graph_of(Residual)
    sizes = graph.bind([tuple(x.shape)])
    assert sizes is not None
    weights = dict(built(Residual).named_parameters()) | graph.constants
    plan = schedule(lower(graph, sizes, x.device), 4)
    return Runner(plan, weights, planned=lambda: 0, channels_last=False, record=True, plainly=plainly)


@pytest.mark.parametrize(
    ("pool", "carried", "made", "fine"),
    [(1000, 40, 1, True), (1070, 40, 1, True), (1000, 200, 0, False), (1200, 20, 1, False), (1120, 40, 1, False)],
)
def test_a_recording_takes_what_was_planned_or_is_not_made(
    pool: int, carried: int, made: int, fine: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a run that is planned to take 1000 MiB: 1152 at most. Copies that are too large are known before."""
    card = Card(monkeypatch, pool * MIB, carried * MIB)
    runs, owner = KeptRuns(CARD), Owner()
    assert (pool + carried) * MIB <= RECORDED_MOST * 1000 * MIB + RECORDED_ROOM or not fine
    if fine:
        owner.record(runs, 1000 * MIB, carried * MIB)
    else:
        with pytest.raises(RuntimeError, match="1000 were planned"):
            owner.record(runs, 1000 * MIB, carried * MIB)
    assert card.made == made
    assert owner.has == fine


def test_while_a_recording_is_made_half_of_the_rest_stays_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that fails leaves nothing, and the limit as it was."""
    card = Card(monkeypatch, 900 * MIB)
    runs, owner = KeptRuns(CARD), Owner()
    for n in range(2):
        owner.record(runs, 1000 * MIB)
        there, may = n * 900 * MIB, RECORDED_MOST * 1000 * MIB + RECORDED_ROOM
        assert card.share_within * card.total == pytest.approx(there + may + (card.total - may) / 2)
        assert card.share == 1.0
    card.fails = "no memory\nfor this"
    late = Owner()
    with pytest.raises(RuntimeError, match="no memory") as caught:
        late.record(runs, 1000 * MIB)
    assert not isinstance(caught.value, torch.OutOfMemoryError)
    assert caught.value.__context__ is None, "an error of the recording holds its memory"
    assert card.share == 1.0
    assert not owner.has
    assert runs.kept() == 0
    card.fails = ""
    card.total = 512 * MIB  # nothing to limit: that the plan asks for more is known elsewhere
    with pytest.raises(RuntimeError, match="more memory than recordings may"):
        late.record(runs, 1000 * MIB)


def test_what_has_gone_unused_for_longest_goes_first_whatever_session_it_is_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    card = Card(monkeypatch)
    share, sessions = int(RECORDED_SHARE * card.total), [KeptRuns(CARD), KeptRuns(CARD)]
    owners = [Owner() for _ in range(4)]
    for n, owner in enumerate(owners):  # 0.84 of the share to work in, and an eighth for inputs and outputs
        owner.record(sessions[n % 2], int(0.45 * share), share // 32)
    assert [o.has for o in owners] == [True] * 4
    sessions[0].used(owners[0])
    late = Owner()
    late.record(sessions[1], int(0.5 * share), share // 25)  # of which there are 0.045 too many
    assert [o.has for o in (*owners, late)] == [True, False, False, True, True]
    drop_recordings(torch.device("cuda", 1))
    assert late.has
    drop_recordings(CARD)
    assert not any(o.has for o in (*owners, late))


def test_recordings_keep_to_their_share_over_any_order_of_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    card, chance = Card(monkeypatch), random.Random(7)
    share, runs = int(RECORDED_SHARE * card.total), KeptRuns(CARD)
    owners = [(Owner(), chance.randint(share // 50, share // 3)) for _ in range(40)]
    used: list[Owner] = []
    for _ in range(300):
        owner, size = chance.choice(owners)
        if owner.has:
            runs.used(owner)
        else:
            owner.record(runs, size, size // 16)
        used = [o for o in used if o is not owner] + [owner]
        alive = [(o, n) for o, n in owners if o.has]
        assert max(n - n // 16 for _, n in alive) + sum(n // 16 for _, n in alive) <= share
        assert [o.has for o in used[-len(alive) :]] == [True] * len(alive)  # those used last
    with pytest.raises(RuntimeError, match="more memory than recordings may"):
        Owner().record(runs, share + 1)


def test_a_size_is_recorded_when_it_comes_often_and_anew_when_it_was_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    card, runs, x = Card(monkeypatch), KeptRuns(CARD), image(12)
    order: list[str] = []
    one = runner_for(x)
    computed, record = one._executed, card.record
    monkeypatch.setattr(one, "_executed", lambda *a, **k: (order.append("run"), computed(*a, **k))[1])
    monkeypatch.setattr(kept_runs, "Recording", lambda *a: (order.append("record"), record(*a))[1])
    (expected,) = one.run([x])
    for _ in range(2):
        order.clear()
        for n in range(RECORDED_AT + 1):
            assert torch.equal(one.run([x], recorder=runs)[0], expected)
            assert one.recorded == (n >= RECORDED_AT - 1)
        assert order == [*["run"] * (RECORDED_AT - 1), "record", "run", "run"]  # the last two: replays
        assert drop_recordings(CARD)
        assert not one.recorded


def test_a_size_is_recorded_at_once_where_nobody_waits_for_its_result(monkeypatch: pytest.MonkeyPatch) -> None:
    Card(monkeypatch)
    runs, x = KeptRuns(CARD), image(12)
    runs.ahead = True
    one = runner_for(x)
    for n in range(4):
        one.run([x], recorder=runs)
        assert one.recorded == (n >= RECORDED_AHEAD - 1)
    assert RECORDED_AHEAD < RECORDED_AT


def test_nothing_is_recorded_while_kernels_are_built(monkeypatch: pytest.MonkeyPatch) -> None:
    Card(monkeypatch)
    runs, x, building = KeptRuns(CARD), image(8), True
    one = runner_for(x)
    monkeypatch.setattr(runner, "under_way", lambda: building)
    for _ in range(RECORDED_AT + 1):
        one.run([x], recorder=runs)
    assert not one.recorded
    building = False
    one.run([x], recorder=runs)
    assert one.recorded


def test_nothing_is_recorded_that_keeps_the_device_busy_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    Card(monkeypatch)
    runs, x, bound = KeptRuns(CARD), image(8), True
    monkeypatch.setattr(Pace, "device_bound", property(lambda _: bound))
    one = runner_for(x)
    for _ in range(RECORDED_AT + 1):
        one.run([x], recorder=runs)
    assert not one.recorded
    bound = False
    one.run([x], recorder=runs)
    assert one.recorded


def test_a_run_without_kernels_is_followed_by_one_with_them_before_any_is_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Recording the first run of a kernel would load it, and what it needs, into a stream that is recorded."""
    Card(monkeypatch)
    runs, x = KeptRuns(CARD), image(8)
    alone: list[bool] = []
    left = [True] * (RECORDED_AT + 1)
    one = runner_for(x, lambda: bool(left and left.pop()))
    execute = runner.execute
    monkeypatch.setattr(runner, "execute", lambda *a, **k: (alone.append(definitions_alone()), execute(*a, **k))[1])
    (expected,) = runner_for(x).run([x])
    for n in range(RECORDED_AT + 3):
        assert torch.equal(one.run([x], recorder=runs)[0], expected)
        assert one.recorded == (n == RECORDED_AT + 2)
    assert alone == [False, *[True] * (RECORDED_AT + 1), False, False]  # the last is recorded


def test_a_run_that_is_shared_takes_what_the_other_ranks_take() -> None:
    x = image(8)
    graph = graph_of(Residual)
    sizes = graph.bind([tuple(x.shape)])
    assert sizes is not None
    weights = dict(built(Residual).named_parameters()) | graph.constants
    plan, shared = (
        schedule(lower(graph, sizes, x.device), 4),
        SimpleNamespace(steps=False, recordable=False, exchange=None),
    )
    how: Any = {"planned": lambda: 0, "channels_last": False, "record": False, "shared": shared}
    one = Runner(plan, weights, **how, plainly=lambda: pytest.fail("asked"))
    assert one.started([x])
