"""Values made again where they are read, and branches one after the other: the same numbers in other memory."""

from __future__ import annotations

import itertools

import pytest
import torch
from one_op import CPU, OneOp, image
from resnet import convolved, normed, resnet_block, summed
from slow_but import slow_but
from small_models import SMALL, Block, built, eager, graph_of
from small_models import image as picture

from tvae.pipeline.engine.ir.program import Program
from tvae.pipeline.engine.lower import lower
from tvae.pipeline.engine.plan.footprint import footprint
from tvae.pipeline.engine.plan.recompute import worth_recomputing
from tvae.pipeline.engine.plan.schedule import levels, movable, placed, schedule
from tvae.pipeline.engine.run.execute import execute


@pytest.mark.parametrize("kind", SMALL, ids=lambda k: k.__name__)
@pytest.mark.parametrize("strip", [1, 4, 13])
@pytest.mark.parametrize("deep", slow_but([True], [False, True]))
def test_small_models(kind: type[Block], strip: int, deep: bool) -> None:
    x = picture(13)
    graph = graph_of(kind)
    sizes = graph.bind([tuple(x.shape)])
    assert sizes is not None
    program = lower(graph, sizes, CPU)
    weights = dict(built(kind).named_parameters()) | graph.constants
    want = eager(kind, x)
    candidates = movable(schedule(program, strip, deep=deep))
    for again in (set(some) for n in range(3) for some in itertools.combinations(candidates, n)):
        plan = schedule(program, strip, deep=deep, recomputed=again)
        keys = {i for op in program.ops for i in op.whole_reads}
        assert plan.stored & again <= keys  # what is read as a whole is kept
        for each in (plan, placed(plan, dict.fromkeys(movable(plan), "host"), defer=True)):
            for got, value in zip(execute(each, [x], weights), want, strict=True):
                torch.testing.assert_close(got, value, rtol=1e-9, atol=1e-9)


def lowered(g: OneOp) -> Program:
    return lower(g.graph, g.sizes, CPU)


def test_a_value_that_is_made_again_is_not_kept() -> None:
    """The convolution between two norms of a block: twice the work of one, and one map less."""
    g = OneOp(64, 16)
    _, sum_ = resnet_block(g, image(g, 4, 1))
    g.gives(g.call("mean.dim", normed(g, sum_), [1], True, shape=(1, 1, "h", "w")))
    program = lowered(g)
    plain = placed(schedule(program, 4), {}, defer=True)
    middle = plain.segments[1].sinks[0]
    plan = placed(schedule(program, 4, recomputed={middle}), {}, defer=True)
    assert middle in plain.stored - plan.stored
    assert footprint(plain).device - footprint(plan).device > 0.7 * program.ops[middle].bytes
    work = program.ops[middle].work
    assert footprint(plan).work - footprint(plain).work == pytest.approx(work, rel=0.6)  # and its halo
    (got,) = execute(plan, g.inputs(), g.weights)
    torch.testing.assert_close(got, g.values[g.graph.outputs[0]], rtol=1e-9, atol=1e-9)


def test_the_price_decides() -> None:
    """What it takes to compute against what it takes to carry."""
    g = OneOp(64, 16)
    _, sum_ = resnet_block(g, image(g, 4, 1))
    g.gives(g.call("mean.dim", normed(g, sum_), [1], True, shape=(1, 1, "h", "w")))
    program = lowered(g)

    def build(again: object) -> object:
        return schedule(program, 4, recomputed=again)  # type: ignore[arg-type]

    assert worth_recomputing(build, 1e3, 1e12) == frozenset()  # type: ignore[arg-type]
    swift = worth_recomputing(build, 1e15, 1e3)  # type: ignore[arg-type]
    assert swift
    assert swift <= set(movable(schedule(program, 4)))


def chunks(count: int) -> OneOp:
    """A clip's chunks: each its own norms and convolutions, and a sum of what they give."""
    g = OneOp(48, 16)
    x = image(g, 4, 1)
    given = []
    for _ in range(count):
        h = convolved(g, x)
        for _ in range(3):
            h = convolved(g, normed(g, h))
        given.append(g.call("mean.dim", h, [1], True, shape=(1, 1, "h", "w")))
    total = given[0]
    for other in given[1:]:
        total = summed(g, total, other)
    return g.gives(total)


@pytest.mark.parametrize("strip", [3, 48])
def test_branches_one_after_the_other_are_not_all_alive_at_once(strip: int) -> None:
    g = chunks(4)
    program = lowered(g)
    wide, deep = (placed(schedule(program, strip, deep=d), {}, defer=True) for d in (False, True))
    assert len(deep.segments) > len(wide.segments)
    assert footprint(deep).device < 0.6 * footprint(wide).device
    for plan in (wide, deep):
        (got,) = execute(plan, g.inputs(), g.weights)
        torch.testing.assert_close(got, g.values[g.graph.outputs[0]], rtol=1e-9, atol=1e-9)


def test_levels_follow_the_model() -> None:
    """Never less than barriers ask for; and never less than those of what was computed before."""
    program = lowered(chunks(3))
    wide, deep = levels(program), levels(program, deep=True)
    assert wide.keys() == deep.keys()
    assert all(deep[i] >= wide[i] for i in wide)
    ordered = [deep[op.id] for op in program.ops if op.id in deep and op.axis is not None and op.kind == "call"]
    assert ordered == sorted(ordered)
