"""Graphs drawn at random: whatever is connected to whatever, strips give what everything at once gives."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from one_op import OneOp, execute_strips, whole_values
from random_graphs import random_graph
from resnet import without_reuse

from tvae.pipeline.engine.plan.cuts import optional_cuts
from tvae.pipeline.engine.plan.schedule import Schedule, levels, movable, schedule
from tvae.pipeline.engine.plan.sliding import shares
from tvae.pipeline.engine.run.execute import execute


@given(data=st.data())
@settings(max_examples=2 * settings.default.max_examples)
def test_strips_equal_everything_at_once(data: Any) -> None:
    g, program = random_graph(data)
    whole_values(program, g, data.draw)
    execute_strips(program, g, data.draw(st.integers(1, program.rows)))


@given(data=st.data())
@settings(max_examples=2 * settings.default.max_examples)
def test_where_buffers_live_and_what_they_replace_changes_no_number(data: Any) -> None:
    """With further cuts than the barriers, at any price. A sum may be rounded otherwise where it lies elsewhere."""
    g, program = random_graph(data, least=4)
    strip = data.draw(st.integers(1, program.rows))
    dear = data.draw(st.sampled_from([1e3, 1e6, 1e9]))  # operations a second
    cuts = data.draw(st.sampled_from([{}, optional_cuts(program, strip, levels(program), dear, 1e9)]))
    plan = schedule(program, strip, None, cuts)
    check_reuse(plan)
    want = executed(without_reuse(plan), g)
    for got, out in zip(want, g.graph.outputs, strict=True):
        torch.testing.assert_close(got, g.values[out], rtol=1e-8, atol=1e-8)
    away = {i: data.draw(st.sampled_from(["host", "disk", None])) for i in movable(plan)}
    elsewhere = schedule(program, strip, {i: place for i, place in away.items() if place}, cuts)
    check_reuse(elsewhere)
    for got, bits, far in zip(executed(plan, g), want, executed(elsewhere, g), strict=True):
        torch.testing.assert_close(got, bits, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(far, bits, rtol=1e-9, atol=1e-9)


@given(data=st.data())
@settings(max_examples=2 * settings.default.max_examples)
def test_strips_that_slide_compute_every_row_once(data: Any) -> None:
    """Some segments slide, with buffers anywhere: the same results, and no row of a value is computed twice."""
    g, program = random_graph(data, least=4)
    strip = data.draw(st.integers(1, program.rows))
    segments = range(len(schedule(program, strip).segments))
    slides = data.draw(st.sets(st.sampled_from(segments))) | {segments[-1]}
    away = {i: data.draw(st.sampled_from(["host", "disk", None])) for i in movable(schedule(program, strip))}
    plan = schedule(program, strip, {i: place for i, place in away.items() if place}, slides=slides)
    check_reuse(plan)
    for got, out in zip(executed(plan, g), g.graph.outputs, strict=True):
        torch.testing.assert_close(got, g.values[out], rtol=1e-8, atol=1e-8)
    for segment in plan.segments:
        if segment.slides:
            what = program.ops, segment.body, segment.sinks, segment.reads, segment.strips, program.rows
            computed: dict[int, int] = {}
            for share in shares(*what, segment.body):
                for id_ in segment.body:
                    if id_ in share.fresh and program.ops[id_].axis is not None:
                        lo, hi = share.fresh[id_]
                        assert lo >= computed.get(id_, 0) or hi == lo, "a row is computed twice"
                        computed[id_] = max(computed.get(id_, 0), hi)


def executed(plan: Schedule, g: OneOp) -> Any:
    inputs = g.inputs()
    before = [x.clone() for x in inputs]
    results = execute(plan, inputs, g.weights)
    assert all(torch.equal(now, then) for now, then in zip(inputs, before, strict=True))
    return results


def check_reuse(plan: Schedule) -> None:
    """A value takes another's place only where nobody else reads that, now or later, and on the device."""
    program, ops = plan.program, plan.program.ops
    for n, segment in enumerate(plan.segments):
        assert len(set(segment.reuse.values())) == len(segment.reuse)
        for new, old in segment.reuse.items():
            assert not {new, old} & (program.params.keys() | {*program.inputs} | plan.places.keys())
            assert old not in program.outputs
            assert ops[old].kind == "call"
            assert (ops[new].shape, ops[new].dtype, ops[new].axis) == (ops[old].shape, ops[old].dtype, ops[old].axis)
            assert [b for b in segment.body if old in ops[b].inputs] == [new]
            assert not any(old in ops[w].inputs for w in segment.whole)
            assert not any(old in later.reads for later in plan.segments[n + 1 :])
            assert all(ops[b].reduction for b in segment.body if new in ops[b].inputs)
            rows = ops[new].axis.rows
            assert all(
                demand in ((i, a, a + 1) for i in ops[new].inputs)
                for a in range(rows)
                for demand in ops[new].demand(a, a + 1)
            )
