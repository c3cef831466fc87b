"""Values that take no memory of their own: handed over, written over their operands, or passing through a strip."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from live_bytes import LiveBytes
from one_op import CPU, OneOp, image
from resnet import convolved, normed, resnet_block, without_reuse

from tvae.pipeline.engine.lower import lower
from tvae.pipeline.engine.plan.footprint import footprint
from tvae.pipeline.engine.plan.schedule import schedule
from tvae.pipeline.engine.run.execute import execute


@pytest.mark.parametrize("strip", [4, 12, 24])
def test_inputs_handed_over_go_as_soon_as_they_have_been_read(strip: int) -> None:
    """A chain of steps, each of which reads one of the inputs and leaves another in its place."""
    g, count = OneOp(24, 16), 6
    x, *before = (g.input(1, 4, "h", "w") for _ in range(1 + count))
    after = []
    for each in before:
        x = convolved(g, g.call("add.Tensor", x, each))
        after.append(g.call("tanh.default", x))
    g.gives(x, *after)
    program = lower(g.graph, g.sizes, CPU)
    said, found = {}, {}
    for handed_over in (False, True):
        inputs = [value.clone() for value in g.inputs()]
        each = replace(program, handed_over=frozenset(program.inputs[1:]) if handed_over else frozenset())
        plan = schedule(each, strip)
        with LiveBytes(g.weights.values()) as live:
            results = execute(plan, inputs, g.weights)
        said[handed_over], found[handed_over] = footprint(plan).device, live.peak
        assert found[handed_over] <= 1.05 * said[handed_over]
        if strip == 24:
            assert found[handed_over] >= 0.85 * said[handed_over]
        for result, ref in zip(results, (x, *after), strict=True):
            assert result is not None
            torch.testing.assert_close(result, g.value(ref))
    if strip == 24:  # one strip: what comes takes the place of what goes
        one = program.ops[program.inputs[1]].bytes
        assert said[False] - said[True] >= (count - 2) * one
        assert found[False] - found[True] >= (count - 2) * one


def test_a_sum_in_place_takes_no_room() -> None:
    """Both ways as predicted and as measured."""
    g = OneOp(64, 16)
    _, sum_ = resnet_block(g, image(g, 4, 1))
    g.gives(g.call("tanh.default", normed(g, sum_)))
    plan = schedule(lower(g.graph, g.sizes, CPU), 4)
    assert any(segment.reuse for segment in plan.segments)
    cost = []
    for each in (plan, without_reuse(plan)):
        with LiveBytes(g.weights.values()) as live:
            execute(each, g.inputs(), g.weights)
        said = footprint(each).device
        assert 0.75 * said <= live.peak <= 1.02 * said  # the result counts from the start
        cost.append(said)
    assert cost[0] < cost[1]


def test_a_convolution_whose_statistics_are_taken_passes_through_its_strip() -> None:
    """On the way into its buffer: beside that, its input's buffer, and the normalised rows that it reads."""
    g = OneOp(64, 16)
    second = convolved(g, normed(g, convolved(g, image(g, 4, 1))))
    g.gives(g.call("mean.dim", normed(g, second), [1], True, shape=[1, 1, "h", "w"]))
    plan = schedule(lower(g.graph, g.sizes, CPU), 32)
    with LiveBytes(g.weights.values()) as live:
        execute(plan, g.inputs(), g.weights)
    said = footprint(plan).device
    assert 0.95 * said <= live.peak <= 1.08 * said  # the definition's statistics have a strip's mean taken off it
