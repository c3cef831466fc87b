"""Ranks that share a program: what drawn graphs seldom have."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from one_op import OneOp, clip_tokens
from shared_programs import put_together, run_ranks, same_as_everything, shared

from tvae.pipeline.engine.ir.program import Ranks
from tvae.pipeline.engine.lower import lower
from tvae.pipeline.engine.plan.schedule import placed, schedule

CPU = torch.device("cpu")
BANDS = ((0, 5), (5, 7), (7, 12))


def test_rows_of_several_frames_in_one_dimension() -> None:
    """Keys and values [N, T*h*w, C]: a rank's rows lie in as many pieces as there are frames."""
    g = OneOp(12, 3)
    tokens = clip_tokens(g, t=3)
    g.gives(g.call("scaled_dot_product_attention.default", tokens, tokens, tokens))
    plan = schedule(shared(lower(g.graph, g.sizes, CPU), BANDS), 4)
    same_as_everything(plan, g, run_ranks(plan, g.inputs(), g.weights))


def test_an_extreme_of_values_that_a_rank_has_no_rows_of() -> None:
    """The largest of one row of negative numbers, which one rank owns: the others add nothing, not zero."""
    g = OneOp(12, 3)
    x = g.input(2, 4, "h", "w", value=-1 - torch.rand(2, 4, 12, 3, dtype=torch.double))
    row = g.call("slice.Tensor", x, 2, 0, 1, shape=(2, 4, 1, "w"))
    g.gives(g.call("amax.default", row, [2, 3], True, shape=(2, 4, 1, 1)))
    plan = schedule(shared(lower(g.graph, g.sizes, CPU), BANDS), 4)
    same_as_everything(plan, g, run_ranks(plan, g.inputs(), g.weights))


def test_what_is_computed_whole_is_so_on_every_rank() -> None:
    """An operation without a rule along the rows, of a value that ranks have rows of, and its use by rows."""
    g = OneOp(12, 3)
    x = g.input(2, 4, "h", "w")
    weight = g.param(4, 4, 3, 3)
    h = g.call("conv2d.default", x, weight, None, [1, 1], [1, 1], shape=(2, 4, "h", "w"))
    total = g.call("cumsum.default", h, 2)
    g.gives(total, g.call("conv2d.default", h, weight, None, [1, 1], [1, 1], shape=(2, 4, "h", "w")))
    plan = schedule(shared(lower(g.graph, g.sizes, CPU, allow_whole=True), BANDS), 4)
    assert any(segment.whole for segment in plan.segments)
    same_as_everything(plan, g, run_ranks(plan, g.inputs(), g.weights))


@pytest.mark.parametrize("strip", [1, 2, 12])
def test_deferred_writes_over_buffers_that_begin_with_another_row(strip: int) -> None:
    """Convolutions with norms between them: each result takes the place of what it is made of."""
    g = OneOp(12, 3)
    x = g.input(2, 4, "h", "w")
    for _ in range(3):
        x = g.call("conv2d.default", x, g.param(4, 4, 3, 3), None, [1, 1], [1, 1], shape=(2, 4, "h", "w"))
        x = g.call("group_norm.default", x, 2, g.param(4), g.param(4), 1e-3)
    g.gives(x, tolerance=1e-8)
    plan = placed(schedule(shared(lower(g.graph, g.sizes, CPU), BANDS), strip), {}, defer=True)
    assert any(segment.deferred for segment in plan.segments)
    same_as_everything(plan, g, run_ranks(plan, g.inputs(), g.weights))


def test_one_rank_alone_exchanges_nothing() -> None:
    g = OneOp(12, 3)
    x = g.input(2, 4, "h", "w")
    g.gives(g.call("group_norm.default", x, 2, g.param(4), g.param(4), 1e-3))
    plan = schedule(shared(lower(g.graph, g.sizes, CPU), ((0, 12),)), 4)
    results = run_ranks(plan, g.inputs(), g.weights)
    torch.testing.assert_close(put_together(plan, results)[0], g.values[g.graph.outputs[0]])


def test_the_widest_rank_is_one_between_two_others() -> None:
    assert Ranks(((0, 4), (4, 8), (8, 12)), 0).widest == 1
    assert Ranks(((0, 5), (5, 9), (9, 13)), 0).widest == 0
    assert replace(Ranks(((0, 4), (4, 9)), 0), rank=1).widest == 1
