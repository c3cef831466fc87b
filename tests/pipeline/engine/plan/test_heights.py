"""Segments whose strips are of different heights: the same numbers, in the room there is."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from slow_but import slow_but
from small_models import SMALL, Attention, Block, LinearAttention, Residual, TwoNorms, built, eager, graph_of, image
from torch import Tensor

from tvae.pipeline.engine.ir.program import Program
from tvae.pipeline.engine.lower import lower
from tvae.pipeline.engine.plan import raised
from tvae.pipeline.engine.plan.footprint import footprint
from tvae.pipeline.engine.plan.known import known_of
from tvae.pipeline.engine.plan.machine import CPU, CUDA, Machine
from tvae.pipeline.engine.plan.planner import fitting, least
from tvae.pipeline.engine.plan.schedule import Schedule, movable, placed, schedule
from tvae.pipeline.engine.plan.strips import strips_of
from tvae.pipeline.engine.run.execute import execute

MACHINES = {"disk": CPU, "host": CUDA}
HEIGHT, WIDTH = 48, 10
MAP = 2 * 8 * HEIGHT * WIDTH * 8  # bytes


class Deeper(Block):
    """Two blocks, one above and one below a convolution of stride two."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        h = self.down(h + self.mix(F.silu(self.norm(h))))
        return self.last(h + self.mix(F.silu(self.norm2(h))))


class KeysAreTheMap(Block):
    """What attention reads as a whole is a view of a map, over which a sum is written later, in more strips."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        n, c, height, width = h.shape
        tokens = h.flatten(2).transpose(1, 2)
        wide = self.qkv(F.scaled_dot_product_attention(tokens, tokens, tokens))
        summed = h + wide.unflatten(2, (3, c)).sum(2).transpose(1, 2).reshape(n, c, height, width)
        return self.last(F.silu(self.norm(summed)))


@lru_cache
def program_of(kind: type[Block]) -> Program:
    sizes = graph_of(kind).bind([(2, 3, HEIGHT, WIDTH)])
    assert sizes is not None
    return lower(graph_of(kind), sizes, torch.device("cpu"))


def right(kind: type[Block], plan: Schedule) -> None:
    """The plan gives the untiled model's numbers."""
    x = image(HEIGHT, WIDTH)
    got = execute(plan, [x], dict(built(kind).named_parameters()) | graph_of(kind).constants)
    for ours, want in zip(got, eager(kind, x), strict=True):
        assert ours is not None
        torch.testing.assert_close(ours, want, rtol=1e-10, atol=1e-10)


def heights(plan: Schedule) -> list[int]:
    return [segment.strips[0][1] for segment in plan.segments if segment.body]


KINDS = [Residual, TwoNorms, Attention, LinearAttention]


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize("kind", slow_but([Residual, TwoNorms, LinearAttention], KINDS), ids=lambda kind: kind.__name__)
def test_every_segment_takes_the_strips_it_has_room_for(kind: type[Block], machine: Machine) -> None:
    """Where little is stored they are higher; what was promised is kept, and the numbers are the same."""
    program, machine = program_of(kind), replace(machine, cache=0)
    few = least(program, (24, 12, 3, 1), machine, {})
    seen = set()
    for budget in range(few, 4 * few, few // 2):
        plan = fitting(program, (24, 12, 3, 1), budget, machine)
        seen |= {len(set(heights(plan)))}
        assert plan.strip_rows == max(segment.strips[0][1] for segment in plan.segments)
        assert footprint(plan).device <= budget
        right(kind, plan)
    assert max(seen) > 1


@pytest.mark.parametrize(
    ("cache", "want"),
    [
        (0, {8}),
        (MAP // 24, {8}),  # a strip of the map below
        (MAP // 6, {8, 24}),  # a strip of the map above
        (MAP // 4, {8, 48}),  # the map below
        (MAP // 3, {16, 48}),
        (MAP // 2, {24, 48}),
        (MAP, {48}),
    ],
)
def test_strips_are_as_high_as_their_values_are_small(cache: int, want: set[int]) -> None:
    program = program_of(Deeper)
    plan = fitting(program, (8, 4, 2, 1), None, replace(CPU, cache=cache))
    assert set(heights(plan)) == want
    assert plan.strip_rows == 8
    right(Deeper, plan)


def test_they_are_not_higher_than_the_budget_allows() -> None:
    program, machine = program_of(Deeper), replace(CPU, cache=MAP)
    needs = footprint(schedule(program, 8)).device
    for budget in range(needs, 2 * needs, needs // 16):
        plan = fitting(program, (8, 4, 2, 1), budget, machine)
        assert footprint(plan).device <= budget
        right(Deeper, plan)
    assert heights(fitting(program, (8, 4, 2, 1), needs, machine))[0] == 8
    assert set(heights(plan)) == {48}


def test_a_height_that_was_asked_for_is_the_height() -> None:
    program = program_of(Deeper)
    assert set(heights(fitting(program, (8,), None, replace(CPU, cache=MAP)))) == {8}


def low_enough(plan: Schedule, lowest: int) -> None:
    """No strip has too much of a value, be it computed or read."""
    for segment in plan.segments:
        for i in (*segment.body, *segment.reads):
            op, height = plan.program.ops[i], segment.strips[0][1]
            if op.axis is not None and height > lowest:
                assert math.prod(op.shape) * height <= raised._MOST_ELEMENTS * plan.program.rows


ELEMENTS = 2 * 8 * HEIGHT * WIDTH  # of the map above; the one below has a fourth


@pytest.mark.parametrize(
    ("most", "strips", "higher", "want"),
    [
        (ELEMENTS // 24, (2, 1), (48, 16, 8, 4), {2, 8}),
        (ELEMENTS // 24, (2, 1), (48, 16), {2}),  # neither is low enough
        (ELEMENTS // 24, (2,), (4,), {2, 4}),
        (ELEMENTS // 48, (1,), (4, 2), {1, 4}),
        (ELEMENTS // 12, (4,), (16,), {4, 16}),
        (ELEMENTS // 3, (16,), (48, 20), {16, 48}),
        (ELEMENTS // 24, (2, 1), (), {2}),
    ],
)
def test_small_values_have_strips_that_were_too_high_for_the_largest(
    most: int, strips: tuple[int, ...], higher: tuple[int, ...], want: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And take no more memory than the large ones."""
    monkeypatch.setattr(raised, "_MOST_ELEMENTS", most)
    program = program_of(Deeper)
    assert raised.highest(program, range(len(program.ops))) == strips[0]
    plan, flat = (fitting(program, strips, None, CUDA, higher=some) for some in (higher, ()))
    assert set(heights(plan)) == want
    assert set(heights(flat)) == {strips[0]}
    assert footprint(plan).device <= footprint(flat).device
    low_enough(plan, strips[0])
    right(Deeper, plan)


@pytest.mark.parametrize("kind", slow_but([Deeper], [Deeper, Attention]), ids=lambda kind: kind.__name__)
def test_a_budget_holds_with_them(kind: type[Block], monkeypatch: pytest.MonkeyPatch) -> None:
    program, seen = program_of(kind), set[int]()
    rows = raised.highest(program, range(len(program.ops)))
    monkeypatch.setattr(raised, "_MOST_ELEMENTS", raised._MOST_ELEMENTS * 2 // rows)
    assert raised.highest(program, range(len(program.ops))) == 2
    few = least(program, (2, 1), CUDA, {})
    for budget in range(few, 3 * few, few // 5):
        plan = fitting(program, (2, 1), budget, CUDA, higher=(24, 8, 4))
        assert footprint(plan).device <= budget
        low_enough(plan, 2)
        seen |= {*heights(plan)}
        right(kind, plan)
    assert max(seen) > 2


def test_values_larger_than_the_rest_keep_the_strips_low(monkeypatch: pytest.MonkeyPatch) -> None:
    """A strip that would take more memory than the fullest segment stays as it is."""
    program = program_of(Deeper)
    flat = fitting(program, (2, 1), None, CUDA)
    cost = footprint(flat)
    plan = raised.raised(flat, cost, None, 0, known_of(program), (48,))
    for segment, taken in zip(plan.segments, footprint(plan).segments, strict=True):
        assert taken.peak <= cost.fullest
        assert segment.strips[0][1] in (2, 48)
    assert len(set(heights(plan))) == 2


def test_strips_that_are_raised_are_of_like_height() -> None:
    """Forty-eight rows in no more than forty: twice twenty-four, not forty and eight."""
    plan = fitting(program_of(Residual), (8, 4), None, replace(CPU, cache=MAP * 40 // 48))
    assert set(heights(plan)) == {24}


def test_one_strip_among_others_shares_no_memory() -> None:
    program = program_of(KeysAreTheMap)
    plan = placed(fitting(program, (8, 4), None, replace(CPU, cache=MAP)), {}, defer=True)
    first, second, *rest = plan.segments
    assert len(first.strips) == 1 < len(second.strips)
    assert set(second.reuse.values()) & set(first.sinks)
    right(KeysAreTheMap, plan)
    shared = replace(first, buffered=False)  # as where there is one strip everywhere
    with pytest.raises(AssertionError):
        right(KeysAreTheMap, replace(plan, segments=(shared, second, *rest)))


@given(data=st.data())
def test_any_heights(data: Any) -> None:
    kind = data.draw(st.sampled_from([*SMALL, Deeper, KeysAreTheMap]))
    program = program_of(kind)
    plan = schedule(program, data.draw(st.integers(1, HEIGHT)))
    if data.draw(st.booleans()):
        places = {i: data.draw(st.sampled_from(["host", "disk", None])) for i in movable(plan)}
        plan = placed(plan, {i: place for i, place in places.items() if place}, defer=data.draw(st.booleans()))
    rows = [data.draw(st.sampled_from([1, 5, 8, 47, HEIGHT])) for _ in plan.segments]
    segments = zip(plan.segments, rows, strict=True)
    mixed = tuple(replace(s, strips=strips_of(program, n), buffered=True) for s, n in segments)
    right(kind, replace(plan, segments=mixed))
