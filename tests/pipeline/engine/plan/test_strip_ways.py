"""What a strip does with one operation. That runs and counts agree: test_footprint.py."""

from __future__ import annotations

from dataclasses import replace

import pytest
from one_op import CPU, OneOp, image
from resnet import convolved, normed, resnet_block

from tvae.pipeline.engine.ir.program import Op, Program
from tvae.pipeline.engine.lower import lower
from tvae.pipeline.engine.plan.sliding import Share
from tvae.pipeline.engine.plan.strip_ways import StripWay, made_in_buffer, way_of, written_over


@pytest.fixture
def program() -> Program:
    g = OneOp(64, 16)
    _, sum_ = resnet_block(g, image(g, 4, 1))
    g.gives(convolved(g, normed(g, sum_)))
    return lower(g.graph, g.sizes, CPU)


def share_of(op: Op, fresh: tuple[int, int], present: tuple[int, int]) -> Share:
    return Share({op.id: present}, {op.id: fresh}, {op.id: present})


def named(program: Program, name: str) -> Op:
    return next(op for op in program.ops if op.name == name)


def test_ways(program: Program) -> None:
    statistic = next(op for op in program.ops if op.reduction)
    conv = named(program, "conv2d")
    into = next(op for op in program.ops if op.into is not None)
    assert way_of(statistic, share_of(statistic, (4, 8), (4, 8)), {statistic.id}, ()) is StripWay.FOLDED
    for way, fresh, present, sinks in (
        (StripWay.COMPUTED, (4, 8), (4, 8), set[int]()),
        (StripWay.STORED, (4, 8), (4, 8), {conv.id}),
        (StripWay.CARRIED, (8, 8), (4, 8), {conv.id}),
        (StripWay.CARRIED, (8, 8), (4, 8), set()),
    ):
        assert way_of(conv, share_of(conv, fresh, present), sinks, ()) is way
    joined = share_of(into, (4, 8), (2, 8))
    assert way_of(into, joined, (), ()) is StripWay.APPENDED
    assert way_of(into, joined, {into.id}, ()) is StripWay.STORED


def test_what_is_made_in_its_buffer(program: Program) -> None:
    op = next(op for op in program.ops if op.produce is not None)
    assert op.axis is not None
    assert made_in_buffer(op, (), (), exact=True, single=False)
    assert not made_in_buffer(op, (), (), exact=False, single=False)
    assert not made_in_buffer(op, (), (), exact=True, single=True)
    assert not made_in_buffer(op, {op.id}, (), exact=True, single=False)
    assert not made_in_buffer(op, (), {op.id}, exact=True, single=False)
    assert not made_in_buffer(replace(op, produce=None), (), (), exact=True, single=False)
    in_parts = replace(op, axis=replace(op.axis, outer=2))  # its rows do not lie together
    assert not made_in_buffer(in_parts, (), (), exact=True, single=False)


def test_what_is_written_over(program: Program) -> None:
    op = next(op for op in program.ops if op.over is not None)
    over = op.over
    assert over is not None
    assert written_over(op, {over}, (), (), ()) == over
    assert written_over(op, (), (), (), ()) is None
    for sinks, away, kept in (({over}, (), ()), ((), {over}, ()), ((), (), {over})):
        assert written_over(op, {over}, sinks, away, kept) is None
    assert written_over(replace(op, over=None), {over}, (), (), ()) is None
