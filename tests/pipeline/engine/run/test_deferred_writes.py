"""Values written over what they are made from, a halo behind the strips: no bit changes, and one map less is alive."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from live_bytes import LiveBytes
from one_op import CPU, OneOp, image
from resnet import convolved, normed, resnet_block, summed, without_reuse
from small_models import SMALL, Block, built, graph_of
from small_models import image as picture
from torch import Tensor

from tvae.pipeline.engine.ir.graph import Ref
from tvae.pipeline.engine.ir.program import Program
from tvae.pipeline.engine.lower import lower
from tvae.pipeline.engine.plan.footprint import footprint
from tvae.pipeline.engine.plan.schedule import Schedule, placed, schedule
from tvae.pipeline.engine.run.execute import execute

HEIGHT = 11
STRIPS = (1, 2, 4, HEIGHT)
strips = pytest.mark.parametrize("strip", STRIPS)
layouts = pytest.mark.parametrize("channels_last", [False, True], ids=["plain", "channels-last"])


def lowered(g: OneOp) -> Program:
    return lower(g.graph, g.sizes, CPU)


def chain(g: OneOp, blocks: int) -> OneOp:
    """Norm, convolution, norm, convolution: each value dies where the next is made."""
    x = convolved(g, image(g, 4, 1))
    for _ in range(blocks):
        x = convolved(g, normed(g, x))
    return g.gives(ending(g, x))


def ending(g: OneOp, x: Ref) -> Ref:
    """A result of another shape, which takes nobody's place."""
    return g.call("mean.dim", normed(g, x), [1], True, shape=(1, 1, *g.shape_of(x)[2:]))


def behind(plan: Schedule) -> list[tuple[int, int]]:
    return [(i, segment.reuse[i]) for segment in plan.segments for i in segment.deferred]


def both(plan: Schedule, g: OneOp, **how: Any) -> Tensor:
    """The result with and without, the same but for the last bits: libraries may add up otherwise at another place."""
    (got,) = execute(plan, g.inputs(), g.weights, **how)
    (want,) = execute(without_reuse(plan), g.inputs(), g.weights, **how)
    assert got is not None
    assert want is not None
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
    return got


@strips
@layouts
@pytest.mark.parametrize("wide", [3, 5], ids=["halo1", "halo2"])
def test_a_convolution_takes_the_place_of_its_input(strip: int, channels_last: bool, wide: int) -> None:
    """Of halos that are higher than a strip, too."""
    g = OneOp(HEIGHT, 5)
    x = convolved(g, image(g, 4, 1))
    for _ in range(2):
        kernel = g.param(4, 4, wide, 3)
        x = g.call("conv2d.default", normed(g, x), kernel, None, [1, 1], [wide // 2, 1])
    g.gives(ending(g, x), channels_last=channels_last)
    plan = placed(schedule(lowered(g), strip), {}, defer=True)
    assert len(behind(plan)) == 2
    got = both(plan, g, channels_last=channels_last)
    torch.testing.assert_close(got, g.value(g_out(g)), rtol=1e-9, atol=1e-9)


def g_out(g: OneOp) -> Ref:
    return Ref(g.graph.outputs[0])


@strips
def test_the_second_sum_of_a_block_takes_the_place_of_what_its_convolution_read(strip: int) -> None:
    """Where what the block began with is needed again, and cannot be written over."""
    g = OneOp(HEIGHT, 5)
    kept, sum_ = resnet_block(g, image(g, 4, 1))
    last = ending(g, g.call("mul.Tensor", normed(g, sum_), g.call("tanh.default", kept)))
    plan = schedule(lowered(g.gives(last)), strip)
    assert behind(plan) == behind(placed(plan, {})) == []
    plan = placed(plan, {}, defer=True)
    summed_ = [op for op in plan.program.ops if op.name == "residual"]
    assert (summed_[0].id, plan.segments[2].reuse[summed_[0].id]) in behind(plan)
    torch.testing.assert_close(both(plan, g), g.value(last), rtol=1e-9, atol=1e-9)


@strips
def test_a_clip_and_its_statistics(strip: int) -> None:
    """Rows in pieces, and norms behind what waits."""
    g = OneOp(HEIGHT, 5)
    x = g.input(1, 4, 3, "h", "w")
    for _ in range(3):
        x = g.call("conv3d.default", normed(g, x), g.param(4, 4, 3, 3, 3), None, [1, 1, 1], [1, 1, 1])
    g.gives(normed(g, x))
    plan = placed(schedule(lowered(g), strip), {}, defer=True)
    assert len(behind(plan)) == 3
    torch.testing.assert_close(both(plan, g), g.value(g_out(g)), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("strip", [1, 3, 5])
@pytest.mark.parametrize("kind", SMALL, ids=lambda k: k.__name__)
def test_small_models(kind: type[Block], strip: int) -> None:
    graph, x = graph_of(kind), picture(13)
    sizes = graph.bind([tuple(x.shape)])
    assert sizes is not None
    weights = dict(built(kind).named_parameters()) | graph.constants
    plan = placed(schedule(lower(graph, sizes, CPU), strip), {}, defer=True)
    want = execute(without_reuse(plan), [x], weights)
    for got, other in zip(execute(plan, [x], weights), want, strict=True):
        assert got is not None
        assert other is not None
        torch.testing.assert_close(got, other, rtol=1e-12, atol=1e-12)


def test_one_map_less_is_alive() -> None:
    """As predicted and as counted in a run."""
    g = chain(OneOp(64, 16), 3)
    plain = schedule(lowered(g), 4)
    plan = placed(plain, {}, defer=True)
    peaks = []
    for each in (plain, plan):
        with LiveBytes(g.weights.values()) as live:
            execute(each, g.inputs(), g.weights)
        assert 0.75 * footprint(each).device <= live.peak <= 1.03 * footprint(each).device
        peaks.append(live.peak)
    a_map = lowered(g).ops[behind(plan)[0][0]].bytes
    assert peaks[0] - peaks[1] > 0.7 * a_map
    assert footprint(plain).device - footprint(plan).device > 0.7 * a_map


@strips
def test_in_any_order(strip: int) -> None:
    """From below everything waits, and is written at the end."""
    g = chain(OneOp(HEIGHT, 5), 2)
    plan = placed(schedule(lowered(g), strip), {}, defer=True)
    turned = replace(plan, segments=tuple(replace(s, strips=s.strips[::-1]) for s in plan.segments))
    (got,) = execute(turned, g.inputs(), g.weights)
    torch.testing.assert_close(got, g.value(g_out(g)), rtol=1e-9, atol=1e-9)


@strips
@pytest.mark.parametrize("place", ["host", "disk"])
def test_nothing_is_written_over_what_lives_elsewhere(strip: int, place: str) -> None:
    g = chain(OneOp(HEIGHT, 5), 2)
    plan = placed(schedule(lowered(g), strip), {}, defer=True)
    for new, old in behind(plan):
        for away in (new, old):
            other = placed(plan, {away: place}, defer=True)  # type: ignore[dict-item]
            assert (new, old) not in behind(other)
            torch.testing.assert_close(both(other, g), g.value(g_out(g)), rtol=1e-9, atol=1e-9)


def test_inputs_and_results_stay() -> None:
    g = OneOp(HEIGHT, 5)
    x = image(g, 4, 1)
    first = convolved(g, normed(g, x))
    second = convolved(g, normed(g, first))
    g.gives(second, first)
    assert behind(placed(schedule(lowered(g), 2), {}, defer=True)) == []


def test_two_values_do_not_take_one_place() -> None:
    g = OneOp(HEIGHT, 5)
    x = convolved(g, image(g, 4, 1))
    one, other = convolved(g, normed(g, x)), convolved(g, normed(g, x))
    g.gives(ending(g, summed(g, normed(g, one), normed(g, other))))
    plan = placed(schedule(lowered(g), 2), {}, defer=True)
    assert len({old for _, old in behind(plan)}) == len(behind(plan)) > 0
    assert [len(segment.deferred) for segment in plan.segments][1] == 1  # both are made in this one
    both(plan, g)
