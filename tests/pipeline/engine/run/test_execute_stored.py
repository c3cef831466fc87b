"""Values written where they are stored, over their operands, and with statistics taken on the way."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from one_op import CPU, OneOp, clip, execute_strips, image
from told_kernels import Chain, telling
from torch import Tensor

from tvae.kernels import Kernels
from tvae.pipeline.engine.ir.graph import Ref
from tvae.pipeline.engine.ir.program import Op, Program
from tvae.pipeline.engine.lower import lower
from tvae.pipeline.engine.plan.schedule import schedule
from tvae.pipeline.engine.run.execute import execute

HEIGHT = 9
STRIPS = (1, 2, 4, HEIGHT)
strips = pytest.mark.parametrize("strip", STRIPS)
layouts = pytest.mark.parametrize("channels_last", [False, True], ids=["plain", "channels-last"])


class Spy(Kernels):
    """Counts passes over values, and keeps the statistics that normalisations are made of."""

    def __init__(self) -> None:
        super().__init__()
        self.passes: Counter[str] = Counter()
        self.finished: list[Tensor] = []

    def _chain(self, operation: str) -> Chain:
        return telling(self._note)(self, operation)

    def _note(self, operation: str, *args: Any) -> None:
        on_the_way = operation == "add_stats" and args[-1]
        self.passes["on the way" if on_the_way else operation] += 1
        if operation == "finish_stats":
            self.finished.append(args[0])


def convolved(g: OneOp, x: Ref) -> Ref:
    """A convolution: needs rows of its neighbours, and gives fresh memory."""
    return g.call("conv2d.default", x, g.param(4, 4, 3, 3), None, [1, 1], [1, 1])


def summed(g: OneOp, x: Ref, other: Ref | None, bias: Ref | None = None) -> Ref:
    """``tvae.residual``."""
    shift = 0.0 if bias is None else g.value(bias).view(1, -1, *[1] * (g.value(x).ndim - 2))
    return g.fused("residual", x, other, bias, value=g.value(x) + (0 if other is None else g.value(other)) + shift)


def normed(g: OneOp, x: Ref, groups: int = 2) -> Ref:
    """``tvae.norm_act``."""
    weight, bias = g.param(4), g.param(4)
    y = F.silu(F.group_norm(g.value(x), groups, g.value(weight), g.value(bias), 1e-3))
    return g.fused("norm_act", x, groups, weight, bias, 1e-3, None, "silu", value=y)


def lowered(g: OneOp, kernels: Kernels | None = None) -> Program:
    """The program of a graph."""
    return lower(g.graph, g.sizes, CPU, kernels)


def named(program: Program, name: str) -> Op:
    """The one op of this name."""
    (op,) = [op for op in program.ops if op.name == name]
    return op


def started(n: int = 2) -> tuple[OneOp, Ref]:
    g = OneOp(HEIGHT, 5)
    return g, image(g, 4, n)


@strips
@layouts
def test_a_stored_value_is_read_by_what_follows_in_its_segment(strip: int, channels_last: bool) -> None:
    """With its neighbours' rows, by a convolution; without, by a tanh; and by a normalisation behind the barrier."""
    g, x = started()
    sum_ = summed(g, convolved(g, x), x, g.param(4))
    again = summed(g, sum_, g.call("tanh.default", sum_))
    g.gives(sum_, convolved(g, sum_), again, normed(g, sum_), normed(g, again), channels_last=channels_last)
    execute_strips(lowered(g), g, strip)


@strips
@layouts
def test_a_sum_over_a_convolution_of_an_earlier_segment_leaves_it_alone(strip: int, channels_last: bool) -> None:
    """Strips behind the barrier read the stored rows more than once, for the halo of the convolution behind the sum."""
    g, x = started()
    h = convolved(g, x)
    kept = convolved(g, h)
    sum_ = summed(g, kept, convolved(g, normed(g, h)), g.param(4))
    g.gives(convolved(g, convolved(g, sum_)), channels_last=channels_last)
    program = lowered(g)
    plan = schedule(program, strip)
    residual = named(program, "residual")
    assert residual.over is not None
    assert residual.over in plan.stored
    assert residual.over in plan.segments[0].sinks
    assert residual.id in plan.segments[1].body
    execute_strips(program, g, strip)


@strips
@layouts
def test_a_sum_that_is_not_stored_is_computed_over_its_convolution(strip: int, channels_last: bool) -> None:
    g, x = started()
    sum_ = summed(g, convolved(g, x), x)
    g.gives(convolved(g, sum_), channels_last=channels_last)
    program = lowered(g)
    given = watched(program, "residual")
    execute_strips(program, g, strip)
    assert len(given) == -(-HEIGHT // strip)
    assert all(out is not None and out.data_ptr() == x_.data_ptr() for out, x_ in given)


def watched(program: Program, name: str) -> list[tuple[Tensor | None, Tensor]]:
    """(where ``produce`` was told to write, the rows of the first operand), once for each call of the one op of this
    name from now on."""
    op = named(program, name)
    inner, seen = op.produce, list[tuple[Tensor | None, Tensor]]()
    assert inner is not None

    def produce(read: Any, lo: int, hi: int, out: Tensor | None, stats: bool) -> tuple[Tensor, Tensor | None]:
        seen.append((out, read(op.inputs[0], lo, hi)))
        return inner(read, lo, hi, out, stats)

    program.ops[op.id] = replace(op, produce=produce)
    return seen


def executed(program: Program, g: OneOp, strip: int) -> list[Tensor]:
    return execute(schedule(program, strip), g.inputs(), g.weights, channels_last=g.channels_last)


@layouts
def test_one_strip_makes_the_value_the_buffer_and_many_write_into_it(channels_last: bool) -> None:
    g, x = started()
    g.gives(summed(g, convolved(g, x), x), channels_last=channels_last)
    program = lowered(g)
    given = watched(program, "residual")
    (whole,) = executed(program, g, HEIGHT)
    ((out, operand),) = given
    assert out is not None
    assert whole.data_ptr() == out.data_ptr() == operand.data_ptr()  # over the convolution: no further memory
    given.clear()
    (many,) = executed(program, g, 2)
    assert [out is not None and out.untyped_storage().data_ptr() for out, _ in given] == [
        many.untyped_storage().data_ptr()
    ] * 5
    torch.testing.assert_close(many, whole, rtol=1e-12, atol=1e-12)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    assert many.is_contiguous(memory_format=layout)


@strips
def test_a_result_is_not_written_over(strip: int) -> None:
    """The convolution is a result itself: nobody's to write over."""
    g, x = started()
    h = convolved(g, x)
    g.gives(summed(g, h, x), h)
    assert named(lowered(g), "residual").over is None
    execute_strips(lowered(g), g, strip)


@strips
@layouts
def test_two_norms_of_a_stored_value_share_statistics_taken_on_the_way(strip: int, channels_last: bool) -> None:
    g, x = started()
    sum_ = summed(g, convolved(g, x), x)
    g.gives(normed(g, sum_), normed(g, sum_, 4), channels_last=channels_last)
    spy = Spy()
    execute_strips(lowered(g, spy), g, strip)
    assert spy.passes["on the way"] == -(-HEIGHT // strip)
    assert spy.passes["group_stats"] == 0
    first, second = spy.finished
    assert torch.equal(first, second)


def norm_of_a_sum(g: OneOp, x: Ref) -> Ref:
    return normed(g, summed(g, convolved(g, x), x, g.param(4)))


def norm_of_a_convolution(g: OneOp, x: Ref) -> Ref:
    return normed(g, convolved(g, x))


def norm_of_an_upsampling(g: OneOp, x: Ref) -> Ref:
    large = (2, 4, "2*h", "2*w")
    taps, bias = g.param(4, 4, 4, 4), g.param(4)
    return normed(g, g.call("conv_transpose2d.input", x, taps, bias, [2, 2], [1, 1], shape=large))


def norm_of_what_a_convolution_reads(g: OneOp, x: Ref) -> Ref:
    """Strips compute rows of their neighbours too, which must not be counted."""
    h = convolved(g, x)
    return g.call("add.Tensor", convolved(g, h), normed(g, h))


BEFORE = (norm_of_a_sum, norm_of_a_convolution, norm_of_an_upsampling, norm_of_what_a_convolution_reads)


@strips
@pytest.mark.parametrize("build", BEFORE, ids=lambda f: f.__name__)
def test_every_pixel_is_counted_once(build: Any, strip: int) -> None:
    g, x = started()
    y = build(g, x)
    spy = Spy()
    execute_strips(lowered(g.gives(y), spy), g, strip)
    pixels = g.value(y).shape[2] * g.value(y).shape[3]
    (parts,) = spy.finished
    assert torch.equal(parts[:, :, 0].sum(1), torch.full((2, 4), float(pixels), dtype=torch.float64))


@strips
@pytest.mark.parametrize("build", BEFORE, ids=lambda f: f.__name__)
def test_statistics_taken_on_the_way_are_those_of_a_pass_that_reads(build: Any, strip: int) -> None:
    """In float32 and far from zero, where they would show a careless sum."""
    g = OneOp(HEIGHT, 5, torch.float32)
    x = g.input(2, 4, "h", "w", value=g.draw_values((2, 4, "h", "w")) + 30)
    g.gives(build(g, x))
    taken, read = Spy(), Spy()
    (ours,) = executed(lowered(g, taken), g, strip)
    program = lowered(g, read)
    program.ops[:] = [replace(op, produce=None) for op in program.ops]
    (theirs,) = executed(program, g, strip)
    assert read.passes["on the way"] == 0
    assert read.passes["group_stats"] > 0
    if build is not norm_of_what_a_convolution_reads:
        assert taken.passes["group_stats"] == 0
    merged = [moments(spy.finished[0]) for spy in (taken, read)]
    torch.testing.assert_close(*merged, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def moments(parts: Tensor) -> Tensor:
    """Mean and variance of every channel."""
    count, mean, m2 = parts.unbind(2)
    total = count.sum(1)
    centre = (count * mean).sum(1) / total
    return torch.stack([centre, (m2 + count * (mean - centre.unsqueeze(1)).square()).sum(1) / total])


@strips
@pytest.mark.parametrize("n", [1, 2])
@layouts
def test_clips_are_written_where_they_are_stored(channels_last: bool, n: int, strip: int) -> None:
    """Rows of a clip, and its tokens, whose rows do not lie together: those are placed, with the same statistics."""
    g = OneOp(HEIGHT, 5)
    x = clip(g, 4, n, 3)
    h = g.call("conv3d.default", x, g.param(4, 4, 3, 3, 3), None, [1, 1, 1], [1, 1, 1])
    sum_ = summed(g, h, x, g.param(4))
    shape = (n, 4, "3*h*w")
    tokens = g.call("mul.Tensor", *[g.call("reshape.default", t, [n, 4, -1], shape=shape) for t in (sum_, x)])
    g.gives(normed(g, sum_), normed(g, tokens), channels_last=channels_last)
    spy = Spy()
    execute_strips(lowered(g, spy), g, strip)
    assert spy.passes["group_stats"] == 0


def test_strips_without_rows_of_a_value_take_no_statistics_of_it() -> None:
    """After a stride of four most strips of one row own none."""
    g, x = started()
    down = g.call("conv2d.default", x, g.param(4, 4, 3, 3), None, [4, 1], [1, 1], shape=(2, 4, "(h - 1)//4 + 1", "w"))
    g.gives(normed(g, down))
    for strip in STRIPS:
        execute_strips(lowered(g), g, strip)


def test_a_plan_can_run_again() -> None:
    """Nothing of a run stays in the plan, the inputs or the weights."""
    g, x = started()
    sum_ = summed(g, convolved(g, x), x, g.param(4))
    g.gives(summed(g, convolved(g, normed(g, sum_)), sum_))
    plan = schedule(lowered(g), 2)
    weights = {name: value.clone() for name, value in g.weights.items()}
    first, second = (execute(plan, g.inputs(), g.weights)[0] for _ in range(2))
    assert torch.equal(first, second)
    for name, value in weights.items():
        assert torch.equal(g.weights[name], value)


def test_the_order_of_strips_changes_no_number() -> None:
    """Statistics are merged, not accumulated: whichever strip comes first."""
    g, x = started()
    g.gives(norm_of_a_sum(g, x))
    plan = schedule(lowered(g), 2)
    turned = replace(plan, segments=tuple(replace(s, strips=s.strips[::-1]) for s in plan.segments))
    for each in (plan, turned):
        torch.testing.assert_close(execute(each, g.inputs(), g.weights)[0], g.values[-1], rtol=1e-10, atol=1e-10)
