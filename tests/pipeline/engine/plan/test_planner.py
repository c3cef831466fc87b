"""Which schedule fits a budget: found where there is one, refused with the number that would do where there is none."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from functools import lru_cache

import pytest
import torch
import torch.nn.functional as F
from one_op import OneOp
from one_op import image as picture
from resnet import convolved, normed, summed
from small_models import Attention, Block, LinearAttention, Residual, TwoNorms, built, eager, graph_of, image
from torch import Tensor

from tvae.pipeline.engine.ir.program import Program
from tvae.pipeline.engine.lower import lower
from tvae.pipeline.engine.plan import planner, smaller
from tvae.pipeline.engine.plan.footprint import footprint, known_of
from tvae.pipeline.engine.plan.machine import CPU, CUDA, Machine, seconds
from tvae.pipeline.engine.plan.planner import fitting, least
from tvae.pipeline.engine.plan.schedule import Schedule, movable, placed, schedule
from tvae.pipeline.engine.run.execute import execute
from tvae.pipeline.errors import PlanError

MIB = 1 << 20
HEIGHTS = (16, 8, 4, 2, 1)
MACHINES = {"disk": CPU, "host": CUDA}
LONG = {(Attention, "disk"), (LinearAttention, "disk")}
"""Tried in the slow run."""
KINDS = [Residual, TwoNorms, Attention, LinearAttention]
kinds = pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.__name__)
everywhere = pytest.mark.parametrize(
    ("kind", "machine"),
    [
        pytest.param(
            kind,
            MACHINES[place],
            marks=pytest.mark.slow if (kind, place) in LONG else (),
            id=f"{kind.__name__}-{place}",
        )
        for kind in KINDS
        for place in MACHINES
    ],
)


@lru_cache
def program_of(kind: type[Block], height: int, width: int) -> Program:
    """Nothing is computed at this size, so that it may be large."""
    graph = graph_of(kind)
    sizes = graph.bind([(2, 3, height, width)])
    assert sizes is not None
    return lower(graph, sizes, torch.device("cpu"))


def large(kind: type[Block]) -> Program:
    """Two pictures of 3 x 2048 x 512 values: buffers of 128 MiB."""
    return program_of(kind, 2048, 512)


def refusal(program: Program, heights: tuple[int, ...], budget: int, machine: Machine) -> int:
    """The MiB that a refusal names."""
    with pytest.raises(PlanError) as caught:
        fitting(program, heights, budget, machine)
    found = re.fullmatch(r"a budget of .* is too small; the smallest that works is (\d+) MiB", str(caught.value))
    assert found, str(caught.value)
    return int(found[1])


@everywhere
def test_whatever_the_budget_the_plan_fits_or_is_refused_with_one_that_does(
    kind: type[Block], machine: Machine
) -> None:
    program = large(kind)
    budget = footprint(schedule(program, HEIGHTS[0])).device
    smallest = refusal(program, HEIGHTS, 0, machine)
    refused = 0
    while budget > MIB:
        budget = int(budget * 0.7)
        if budget >= smallest * MIB:
            plan = fitting(program, HEIGHTS, budget, machine)
            assert footprint(plan).device <= budget
            assert plan.strip_rows in HEIGHTS
            assert set(plan.places.values()) <= {machine.elsewhere}
            assert plan.places.keys() <= set(movable(plan))
        else:
            assert refusal(program, HEIGHTS, budget, machine) == smallest  # the same, however far it is
            refused += 1
    assert refused > 2
    fitting(program, HEIGHTS, smallest * MIB, machine)
    refusal(program, HEIGHTS, (smallest - 2) * MIB, machine)


@kinds
def test_long_steps_reach_a_budget_in_fewer(kind: type[Block]) -> None:
    program = large(kind)
    known, way = known_of(program), next(iter(planner.ways(program, 8, CPU, {})))

    def costs(goal: int | None) -> list[int]:
        chain = smaller.ever_smaller(program, 8, CPU, {}, way, frozenset(), known, goal)
        return [cost.device for _, cost in chain]

    one_by_one = costs(None)
    goal = (one_by_one[0] + min(one_by_one)) // 2
    several = costs(goal)
    assert min(several) <= goal

    def steps(found: list[int]) -> int:
        return next(n for n, cost in enumerate(found) if cost <= goal)

    assert steps(several) <= steps(one_by_one)
    assert len(costs(0)) < len(one_by_one) or len(one_by_one) < 4


@kinds
def test_no_choice_of_heights_and_buffers_takes_less_than_the_smallest_budget(kind: type[Block]) -> None:
    """Those with up to two buffers made again and up to one kept, by force; sliding saves little here: low halos."""
    program = large(kind)
    ways = [
        (rows, way.cuts, way.deep)
        for rows in (HEIGHTS[0], HEIGHTS[-1])
        for way in planner.ways(program, rows, CPU, {})
        if not way.slide
    ]
    best = min(
        footprint(placed(plan, dict.fromkeys(set(movable(plan)) - kept, CPU.elsewhere), defer=defer)).device
        for rows, cuts, deep in ways
        for again in subsets(movable(schedule(program, rows, None, cuts, deep=deep)), 2)
        for plan in [schedule(program, rows, None, cuts, deep=deep, recomputed=again)]
        for kept in subsets(movable(plan), 1)
        for defer in (False, True)
    )
    assert least(program, HEIGHTS, CPU, {}) <= 1.01 * best
    assert refusal(program, HEIGHTS, 0, CPU) == -(-least(program, HEIGHTS, CPU, {}) // MIB)


def subsets(ids: list[int], most: int) -> list[set[int]]:
    return [set(some) for n in range(most + 1) for some in itertools.combinations(ids, n)]


@everywhere
def test_a_budget_changes_no_number(kind: type[Block], machine: Machine) -> None:
    program, x = program_of(kind, 48, 10), image(48, 10)
    weights = dict(built(kind).named_parameters()) | graph_of(kind).constants
    (want,) = eager(kind, x)
    heights = (24, 12, 3, 1)
    most, few = footprint(schedule(program, 24)).device, least(program, heights, machine, {})
    seen = set()
    for share in (1.0, 0.75, 0.5, 0.25, 0.0):
        plan = fitting(program, heights, int(few + share * (most - few)), machine)
        seen.add((plan.strip_rows, len(plan.places), plan.stored, plan.defer))
        (got,) = execute(plan, [x], weights)
        assert got is not None
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
    assert len(seen) > 2  # plans of several kinds were tried


def test_the_preferred_height_is_kept_while_it_fits() -> None:
    program = large(TwoNorms)
    for budget in (None, 1 << 50, footprint(schedule(program, 16)).device):
        for heights in (HEIGHTS, (16, 64, 32)):  # whatever would be faster
            plan = fitting(program, heights, budget, CPU)
            assert (plan.strip_rows, plan.places) == (16, {})
    assert footprint(schedule(program, 16)).device > footprint(schedule(program, 8)).device


def test_lower_strips_come_before_the_disk() -> None:
    """Where a little is missing, strips of half the height are nearly free; a gigabyte to disk and back is not."""
    program = large(TwoNorms)
    plan = fitting(program, HEIGHTS, footprint(schedule(program, 16)).device - 1, CPU)
    assert plan.places == {}
    assert plan.strip_rows >= 8  # the highest that fit are the fastest


def nested() -> Program:
    """Where most is alive: six buffers of one size and one of a quarter of it; later a single one of twice the size."""
    g = OneOp(128, 32)
    x = picture(g, 4, 1)
    kept = [convolved(g, x)]
    slim = g.call("conv2d.default", kept[0], g.param(1, 4, 3, 3), None, [1, 1], [1, 1], shape=(1, 1, "h", "w"))
    for _ in range(5):
        kept.append(convolved(g, normed(g, kept[-1])))
    total = kept[-1]
    for other in kept[:-1]:
        total = summed(g, convolved(g, normed(g, total)), other)
    total = g.call("mul.Tensor", total, slim)
    up = g.call("upsample_nearest2d.vec", total, None, [2.0, 1.0], shape=(1, 4, "2*h", "w"))
    g.gives(g.call("mean.dim", normed(g, convolved(g, up)), [1], True, shape=(1, 1, "2*h", "w")))
    return lower(g.graph, g.sizes, torch.device("cpu"))


def test_what_goes_is_large_and_in_the_way() -> None:
    """A buffer that is alive when memory is fullest, whatever is larger at other times; one more as the need grows."""
    program = nested()
    here = schedule(program, 8)
    cost, sizes = footprint(here), {i: program.ops[i].bytes for i in movable(here)}
    fullest = max(range(len(cost.segments)), key=lambda n: cost.segments[n].stored + cost.segments[n].strip)
    made = {i: n for n, segment in enumerate(here.segments) for i in segment.sinks}
    dropped = {i: n for n, segment in enumerate(here.segments) for i in segment.drops}
    alive = {i for i in sizes if made[i] <= fullest <= dropped[i]}
    assert len(alive) > 4
    assert max(sizes.values()) == 2 * max(sizes[i] for i in alive) == 8 * min(sizes[i] for i in alive)
    room = cost.device - 1 - least(program, (8,), CPU, {})
    gone = [fitting(program, (8,), cost.device - 1 - room * part // 10, CPU).places.keys() for part in range(11)]
    first = next(ids for ids in gone if ids)
    assert first <= alive
    assert min(sizes[i] for i in first) == max(sizes[i] for i in alive)
    assert [len(ids) for ids in gone] == sorted(len(ids) for ids in gone)
    assert len(first) < len(gone[5]) < len(gone[10])


def without_barriers() -> Program:
    """Twelve convolutions in a row: strips compute much of each other, unless they are cut."""
    g = OneOp(512, 64)
    x = picture(g, 4, 1)
    for _ in range(12):
        x = convolved(g, x)
    g.gives(g.call("mean.dim", x, [1], True, shape=(1, 1, "h", "w")))
    return lower(g.graph, g.sizes, torch.device("cpu"))


def test_optional_cuts_stay_when_buffers_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    program, every_way = without_barriers(), planner.ways
    for module in (planner, smaller):
        monkeypatch.setattr(module, "ways", lambda *what: [way for way in every_way(*what) if not way.slide])
    machine = Machine(1e6, CPU.memory, CPU.link, CPU.start, "disk")  # computing twice is dear
    uncut = schedule(program, 8)
    cut = fitting(program, (8,), None, machine)
    assert len(cut.segments) > len(uncut.segments) == 1
    assert not cut.places
    every = [
        (plan, cost.device)
        for way in planner.ways(program, 8, machine, {})
        for plan, cost in smaller.ever_smaller(program, 8, machine, {}, way, frozenset(), {})
    ]
    assert {len(plan.segments) for plan, _ in every if plan.places} == {len(cut.segments)}
    assert min(size for _, size in every) == least(program, (8,), machine, {})
    tight = fitting(program, (8,), min(size for plan, size in every if plan.places), machine)
    assert tight.places
    assert len(tight.segments) == len(cut.segments)


def test_what_costs_less_to_make_again_is_not_carried_away() -> None:
    """A convolution is cheaper than a slow link; where computing is slow the same value is moved. Same numbers."""
    program, x = program_of(TwoNorms, 48, 10), image(48, 10)
    weights = dict(built(TwoNorms).named_parameters()) | graph_of(TwoNorms).constants
    (want,) = eager(TwoNorms, x)
    swift = Machine(1e15, 1e12, 1e6, 1e-9, "host")
    slow = Machine(1e5, 1e12, 1e9, 1e-9, "host")
    whole = schedule(program, 4)
    budget = footprint(schedule(program, 4, dict.fromkeys(movable(whole)[:1], "host"))).device
    made, moved = (fitting(program, (4,), budget, machine) for machine in (swift, slow))
    assert len(made.stored) < len(whole.stored)
    assert not made.places
    assert moved.stored >= whole.stored
    assert moved.places
    assert footprint(made).work > footprint(whole).work
    for plan in (made, moved):
        assert footprint(plan).device <= budget
        (got,) = execute(plan, [x], weights)
        assert got is not None
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


def test_what_the_host_cannot_take_goes_to_disk() -> None:
    program = large(TwoNorms)
    machine = Machine(1e5, 1e12, 1e10, 1e-9, "host")  # too slow to make anything again
    few = least(program, (4,), machine, {})
    free = fitting(program, (4,), few, machine)
    assert set(free.places.values()) == {"host"}
    for room in (0, footprint(free).host // 2, footprint(free).host):
        plan = fitting(program, (4,), few, replace(machine, host=room))
        cost = footprint(plan)
        assert cost.host <= room
        assert cost.device <= few
        assert cost.host + cost.disk >= footprint(free).host
        assert cost.moved > 0
        spilled = sum(part.spilled for part in cost.segments)
        assert (spilled == 0) == (room == footprint(free).host)
        assert (spilled == cost.moved) == (room == 0)
        assert seconds(plan, cost, machine) >= seconds(free, footprint(free), machine)


def test_a_height_that_is_fixed_stays() -> None:
    """``--strip N``: buffers may go, the height does not."""
    program = large(TwoNorms)
    full = footprint(schedule(program, 64)).device
    plan = fitting(program, (64,), full - 1, CPU)
    assert {segment.strips[0] for segment in plan.segments} == {(0, 64)}
    assert footprint(plan).device < full
    alone, any_height = refusal(program, (64,), 0, CPU), refusal(program, (64, *HEIGHTS), 0, CPU)
    assert alone > any_height
    assert fitting(program, (64,), alone * MIB, CPU).strip_rows == 64


def test_moving_a_buffer_that_saves_nothing_is_not_the_least() -> None:
    """One strip: what waits on its way out takes as much as the buffer did, and what it would cost is not named."""
    program = large(Residual)
    here = footprint(schedule(program, 2048)).device
    away = footprint(schedule(program, 2048, dict.fromkeys(movable(schedule(program, 2048)), "disk"))).device
    assert least(program, (2048,), CPU, {}) == min(here, away)
    assert refusal(program, (2048,), 0, CPU) == -(-min(here, away) // MIB)


def test_the_budget_is_named_as_the_user_would() -> None:
    """What the process itself takes is on top, in what was asked for and in what would do."""
    program = large(TwoNorms)

    def named(activations: int) -> int:
        return 2 * activations + 100 * MIB

    plain = refusal(program, HEIGHTS, 0, CPU)
    with pytest.raises(PlanError) as caught:
        fitting(program, HEIGHTS, 25 * MIB, CPU, named)
    enough = -(-named(least(program, HEIGHTS, CPU, {})) // MIB)
    message = f"a budget of 150.0 MiB is too small; the smallest that works is {enough} MiB"
    assert str(caught.value) == message
    assert 2 * plain + 98 <= enough <= 2 * plain + 100
    with pytest.raises(PlanError) as caught:
        fitting(program, HEIGHTS, 25 * MIB, CPU, named, enough=lambda activations: named(activations) + 7 * MIB)
    assert str(caught.value) == message.replace(f"{enough} MiB", f"{enough + 7} MiB")


def test_what_is_at_the_callers_anyway_takes_no_memory() -> None:
    program = large(TwoNorms)
    ends = {program.inputs[0]: "caller", program.outputs[0]: "caller"}
    plan = fitting(program, HEIGHTS, None, replace(CPU, cache=0), places=ends)
    assert plan.places == ends
    saved = footprint(schedule(program, 16)).device - footprint(plan).device
    whole = sum(program.ops[i].bytes for i in ends)
    assert 0.9 * whole < saved <= whole
    modest = least(program, HEIGHTS, CPU, ends)
    assert modest < least(program, HEIGHTS, CPU, {})
    plan = fitting(program, HEIGHTS, modest, CPU, places=ends)
    assert ends.items() <= plan.places.items()
    assert footprint(plan).device <= modest


# -- time --------------------------------------------------------------------------------------------------------------
def time_of(plan: Schedule, machine: Machine = CPU) -> float:
    return seconds(plan, footprint(plan), machine)


@kinds
def test_estimates_order_what_is_plain(kind: type[Block]) -> None:
    """Rows computed twice, operations started more often, bytes that travel: each takes time."""
    program = large(kind)
    times = [time_of(schedule(program, rows)) for rows in (64, *HEIGHTS)]
    assert times == sorted(times)
    here = schedule(program, 16)
    away = [schedule(program, 16, dict.fromkeys(movable(here)[:n], "disk")) for n in range(len(movable(here)) + 1)]
    slow = replace(CPU, disk=1e5)
    times = [time_of(plan, slow) for plan in away]
    assert times == sorted(times)
    assert times[-1] > 10 * times[0]
    on_host = schedule(program, 16, dict.fromkeys(movable(here), "host"))
    assert time_of(on_host, CUDA) < time_of(away[-1], CPU)
    assert time_of(schedule(program_of(kind, 4096, 512), 16)) > 1.5 * time_of(here)


def test_copies_are_hidden_behind_computation() -> None:
    """A link that is fast enough costs nothing."""
    program = large(TwoNorms)
    here = schedule(program, 16)
    away = schedule(program, 16, dict.fromkeys(movable(here), "disk"))
    endless = replace(CPU, disk=1e15)
    assert time_of(away, endless) == pytest.approx(time_of(here, endless), rel=1e-6)


class Attending(Block):
    """Attention between two norms: its keys, what it is added to and the sum are stored, all as large."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        h = h + self.mix(F.silu(self.norm(h)))
        n, c, height, width = h.shape
        q, k, v = self.qkv(self.norm2(h).flatten(2).transpose(1, 2)).chunk(3, dim=-1)
        out = F.scaled_dot_product_attention(q, k, v)
        h = h + out.transpose(1, 2).reshape(n, c, height, width)
        return self.last(F.silu(self.norm(h)))


def test_attentions_keys_stay_while_anything_as_large_could_go() -> None:
    """Seen in parts they cost several times the time of a move."""
    program = large(Attending)
    keys = program.chunkable
    assert keys
    plans = [plan for plan, _ in smaller.ever_smaller(program, 64, CUDA, {}, smaller.Way({}), frozenset(), {})]
    before = next(a for a, b in itertools.pairwise(plans) if keys & b.places.keys())
    attending = next(n for n, part in enumerate(before.segments) if any(program.ops[i].chunked for i in part.body))
    spans = smaller._spans(before, before.places)
    stay = {i for i, (made, dropped) in spans.items() if made <= attending <= dropped and i not in keys}
    assert not [i for i in stay if program.ops[i].bytes >= max(program.ops[key].bytes for key in keys)]
