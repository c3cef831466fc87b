"""The rule of a convolution with zeros on one side, against padding and convolving in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given
from hypothesis import strategies as st
from one_op import CPU, Case, Draw, OneOp, check, heights

from tvae.pipeline.engine.ir.fused_ops import even_zeros
from tvae.pipeline.engine.ir.layout import memory_format
from tvae.pipeline.engine.lower import lower
from tvae.pipeline.engine.plan.schedule import schedule
from tvae.pipeline.engine.run.execute import execute

TOLERANCES = {torch.float64: 1e-8, torch.float32: 2e-4, torch.bfloat16: 0.2}


def uneven_conv(draw: Draw, op: str) -> OneOp:
    """Steps, gaps and groups, and other zeros before a dimension than after it."""
    dtype = draw(st.sampled_from([*TOLERANCES]))
    g = OneOp(draw(heights), draw(st.integers(2, 4)), dtype)
    dims = draw(st.sampled_from([1, 2, 3]))
    spatial = {1: ["h"], 2: ["h", "w"], 3: [draw(st.integers(3, 5)), "h", "w"]}[dims]
    g.sizes["w"] += 3
    each = [st.integers(*bounds) for bounds in ((1, 3), (1, 3), (1, 2))]
    kernel, stride, dilation = ([draw(one) for _ in spatial] for one in each)
    if dtype == torch.bfloat16:  # with both, PyTorch 2.13's own on CPUs with AMX reads memory that nobody wrote
        dilation = [1 if step > 1 else gap for step, gap in zip(stride, dilation, strict=True)]
    zeros = [(draw(st.integers(0, 2)), draw(st.integers(0, 2))) for _ in spatial]
    before, after = [b for b, _ in zeros], [a for _, a in zeros]
    reach = [(k - 1) * d for k, d in zip(kernel, dilation, strict=True)]
    assume(all(z <= r for z, r in zip(even_zeros(before, after, stride), reach, strict=True)))
    assume(all(g.number(n) + b + a > r for n, b, a, r in zip(spatial, before, after, reach, strict=True)))
    groups = draw(st.sampled_from([1, 2]))
    x, weight, bias = (
        g.input(draw(st.integers(1, 2)), 4, *spatial),
        g.param(4, 4 // groups, *kernel),
        draw(st.sampled_from([None, g.param(4)])),
    )
    conv, amounts = (F.conv1d, F.conv2d, F.conv3d)[dims - 1], [n for pair in reversed(zeros) for n in pair]
    y = conv(F.pad(g.wide(x), amounts), g.wide(weight), g.wide(bias), stride, 0, dilation, groups)
    sizes = [
        f"({n} + {b + a - r - 1})//{s} + 1" for n, b, a, r, s in zip(spatial, before, after, reach, stride, strict=True)
    ]
    args = x, weight, bias, stride, before, after, dilation, groups
    made = g.fused("uneven_conv", *args, value=y, shape=(y.shape[0], 4, *sizes))
    return g.gives(made, tolerance=TOLERANCES[dtype], channels_last=draw(st.booleans()))


CASES: dict[str, Case] = {"uneven_conv": uneven_conv}


@given(data=st.data())
def test_rows_of_what_was_asked_for_equal_the_op_on_everything(data: Any) -> None:
    check(uneven_conv, "uneven_conv", data)


@pytest.mark.parametrize("last", [False, True])
def test_what_is_left_lies_in_one_piece(last: bool) -> None:
    """A convolution behind it would copy it in every strip."""
    g = OneOp(9, 8)
    x, weight = g.input(2, 4, "h", "w"), g.param(4, 4, 3, 3)
    y = F.conv2d(F.pad(g.value(x), (0, 1, 0, 1)), g.value(weight), stride=2)
    args = x, weight, None, [2, 2], [0, 0], [1, 1], [1, 1], 1
    g.gives(g.fused("uneven_conv", *args, value=y, shape=(2, 4, "(h - 2)//2 + 1", "(w - 2)//2 + 1")), tolerance=1e-9)
    layout = memory_format(4, last)
    program = lower(g.graph, g.sizes, CPU, channels_last=last)
    given = [v.contiguous(memory_format=layout) for v in (g.value(x), *g.weights.values())]
    weights = dict(zip(g.weights, given[1:], strict=True))
    (found,) = execute(schedule(program, 9), given[:1], weights, channels_last=last)
    assert found is not None
    assert found.is_contiguous(memory_format=layout)
    torch.testing.assert_close(found, y)


@pytest.mark.parametrize("height", [8, 9])
def test_what_is_dropped_is_counted(height: int) -> None:
    """The convolution's own result is there beside the part of it that is kept."""
    g = OneOp(height, 40, torch.float32)
    x, weight = g.input(1, 4, "h", "w"), g.param(4, 4, 3, 3)
    y = F.conv2d(F.pad(g.value(x), (0, 1, 0, 1)), g.value(weight), stride=2)
    args = x, weight, None, [2, 2], [0, 0], [1, 1], [1, 1], 1
    g.gives(g.fused("uneven_conv", *args, value=y, shape=(1, 4, "(h - 2)//2 + 1", "(w - 2)//2 + 1")), tolerance=1e-4)
    op = lower(g.graph, g.sizes, CPU).ops[-1]
    whole = F.conv2d(g.value(x), g.value(weight), stride=2, padding=2)
    assert whole.nbytes <= op.workspace(y.shape[2]) <= 1.3 * whole.nbytes
