"""Which schedule fits a budget: found where there is one, refused with the number that would do where there is none."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import pytest
import torch
from large_programs import HEIGHTS, KINDS, kinds, large, program_of
from small_models import Attention, Block, LinearAttention, Residual, TwoNorms, built, eager, graph_of, image

from tvae.pipeline.engine.ir.program import Program
from tvae.pipeline.engine.plan import planner, smaller
from tvae.pipeline.engine.plan.footprint import footprint
from tvae.pipeline.engine.plan.known import known_of
from tvae.pipeline.engine.plan.machine import CPU, CUDA, Machine
from tvae.pipeline.engine.plan.planner import fitting, least
from tvae.pipeline.engine.plan.schedule import movable, placed, schedule
from tvae.pipeline.engine.run.execute import execute
from tvae.pipeline.errors import PlanError

MIB = 1 << 20
MACHINES = {"disk": CPU, "host": CUDA}
LONG = {(Attention, "disk"), (LinearAttention, "disk")}
"""Tried in the slow run."""
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


@pytest.mark.long
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
