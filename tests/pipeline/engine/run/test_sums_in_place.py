"""Sums written over what they were made from: they change no bit, and nothing that is still read is written over."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from one_op import OneOp
from programs_by_hand import executed, layouts, lowered, named, places, right, same_numbers, started, strips
from resnet import convolved, normed, resnet_block, summed, without_reuse
from torch import Tensor

from tvae.pipeline.engine.plan.schedule import schedule


@strips
@layouts
@pytest.mark.parametrize("n", [1, 2])
def test_a_sum_takes_the_place_of_what_nobody_reads_after_it(strip: int, channels_last: bool, n: int) -> None:
    g, x = started(n)
    _, first = resnet_block(g, x)
    second = summed(g, convolved(g, normed(g, convolved(g, normed(g, first)))), first, g.param(4))
    g.gives(convolved(g, normed(g, second)), channels_last=channels_last)
    program = lowered(g)
    plan = schedule(program, strip)
    chain = [(*segment.reuse.items(),) for segment in plan.segments]
    sums = [op.id for op in named(program, "residual")]
    (kept,) = program.ops[sums[0]].inputs[1:2]
    assert chain == [(), (), ((sums[0], kept),), (), ((sums[1], sums[0]),), ()]
    got = executed(plan, g)
    right(got, g)
    assert same_numbers(got, executed(without_reuse(plan), g))


def test_the_memory_is_really_the_same() -> None:
    g, x = started()
    _, sum_ = resnet_block(g, x)
    g.gives(convolved(g, normed(g, sum_)))
    program = lowered(g)
    (residual,) = named(program, "residual")
    inner, seen = residual.produce, list[tuple[Any, Any]]()
    assert inner is not None

    def produce(read: Any, lo: int, hi: int, out: Tensor | None, stats: bool) -> Any:
        assert out is not None
        seen.append((out.data_ptr(), read(residual.inputs[1], lo, hi).data_ptr()))
        return inner(read, lo, hi, out, stats)

    program.ops[residual.id] = replace(residual, produce=produce)
    right(executed(schedule(program, 2), g), g)
    assert len(seen) == 5
    assert all(out == old for out, old in seen)


def reuses(g: OneOp, strip: int, **options: Any) -> list[tuple[int, int]]:
    """All that is written over something, after a check that this changes nothing."""
    program = lowered(g)
    plan = schedule(program, strip, **options)
    got = executed(plan, g)
    right(got, g)
    assert same_numbers(got, executed(without_reuse(plan), g))
    return [pair for segment in plan.segments for pair in segment.reuse.items()]


@strips
def test_an_input_is_not_written_over(strip: int) -> None:
    g, x = started()
    sum_ = summed(g, convolved(g, normed(g, convolved(g, normed(g, x)))), x)
    assert reuses(g.gives(convolved(g, normed(g, sum_))), strip) == []


@strips
def test_a_result_is_not_written_over(strip: int) -> None:
    g, x = started()
    kept, sum_ = resnet_block(g, x)
    assert reuses(g.gives(kept, convolved(g, normed(g, sum_))), strip) == []


@strips
def test_what_a_later_segment_reads_is_not_written_over(strip: int) -> None:
    g, x = started()
    kept, sum_ = resnet_block(g, x)
    later = g.call("mul.Tensor", normed(g, sum_), g.call("tanh.default", kept))
    assert reuses(g.gives(later), strip) == []


@strips
def test_what_another_value_of_the_segment_reads_is_not_written_over(strip: int) -> None:
    """A convolution beside the sum needs rows that the strip above has written."""
    g, x = started()
    kept = convolved(g, x)
    middle = convolved(g, normed(g, kept))
    sum_ = summed(g, convolved(g, normed(g, middle)), kept)
    mean = g.call("mean.dim", middle, [2, 3], True, shape=(1, 4, 1, 1))
    beside = convolved(g, g.call("mul.Tensor", kept, mean))
    assert reuses(g.gives(normed(g, sum_), beside), strip) == []


@strips
def test_a_sum_that_is_read_with_its_neighbours_is_not_written_over_anything(strip: int) -> None:
    """Its halo rows are computed from rows that the strip above would have replaced."""
    g, x = started()
    _, sum_ = resnet_block(g, x)
    assert reuses(g.gives(normed(g, sum_), convolved(g, sum_)), strip) == []


@strips
def test_a_sum_of_a_value_with_itself(strip: int) -> None:
    g, x = started()
    kept = convolved(g, x)
    mean = g.call("mean.dim", kept, [2, 3], True, shape=(1, 4, 1, 1))
    scaled = g.call("mul.Tensor", convolved(g, x), mean)
    double = summed(g, kept, kept)
    reuses(g.gives(convolved(g, normed(g, g.call("add.Tensor", double, scaled)))), strip)


@strips
@places
def test_nothing_is_written_over_what_lives_elsewhere(strip: int, place: str) -> None:
    """Neither the old value's buffer nor the sum's may be anywhere but on the device."""
    g, x = started()
    _, sum_ = resnet_block(g, x)
    g.gives(convolved(g, normed(g, sum_)))
    program = lowered(g)
    (residual,) = named(program, "residual")
    for away in (residual.inputs[1], residual.id):
        assert reuses(g, strip, places={away: place}) == []


@strips
def test_only_one_sum_is_written_over_a_value(strip: int) -> None:
    """Each of two sums would be the last to read it, if it were not for the other."""
    g, x = started()
    kept, sum_ = resnet_block(g, x)
    other = summed(g, convolved(g, normed(g, convolved(g, normed(g, kept)))), kept)
    assert reuses(g.gives(normed(g, sum_), normed(g, other)), strip) == []
