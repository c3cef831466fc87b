"""Tokens one by one, and values of a few rows whole, where a rule does not take them as they are."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from one_op import CPU, Draw, OneOp, execute_strips, heights, image, tokens, whole_values, widths
from row_reader import same

from tvae.pipeline.engine.ir.graph import Ref
from tvae.pipeline.engine.ir.sizes import Size
from tvae.pipeline.engine.lower import lower

FEW = st.integers(1, 3)


def _features(g: OneOp) -> Ref:
    return g.call("transpose.int", tokens(g), 1, 2, shape=(2, 4, "h*w"))


def joined(draw: Draw, g: OneOp) -> Ref:
    """A few tokens in front or after, mixed with all by attention, and taken off."""
    few, x = draw(FEW), tokens(g)
    own, front = g.param(2, few, 4), draw(st.booleans())
    parts = [own, x] if front else [x, own]
    every = g.call("cat.default", parts, 1, shape=(2, f"{few} + h*w", 4))
    seen = g.call("scaled_dot_product_attention.default", every, every, every)
    both = g.call("add.Tensor", every, seen)
    start, stop = (few, Size(f"{few} + h*w")) if front else (0, Size("h*w"))
    left = g.call("slice.Tensor", both, 1, start, stop, shape=(2, "h*w", 4))
    lo, hi = (0, few) if front else (Size("h*w"), Size(f"{few} + h*w"))
    taken = g.call("slice.Tensor", both, 1, lo, hi, shape=(2, few, 4))
    mean = g.call("mean.dim", taken, [1], True, shape=(2, 1, 4))
    return g.call("mul.Tensor", g.call("add.Tensor", left, x), mean)


def split_off(draw: Draw, g: OneOp) -> Ref:
    """The first tokens of all beside the others."""
    parts = g.call("split_with_sizes.default", tokens(g), [1, Size("h*w - 1")], 1, shape=[(2, 1, 4), (2, "h*w - 1", 4)])
    return g.call("cat.default", [g.part(parts, 1), g.part(parts, 0)], 1, shape=(2, "h*w", 4))


def convolved(draw: Draw, g: OneOp) -> Ref:
    """Along tokens, as many as before or fewer."""
    k, step = draw(st.sampled_from([1, 3])), draw(FEW)
    return g.call(
        "conv1d.default", _features(g), g.param(5, 4, k), None, [step], [k // 2], shape=(2, 5, f"(h*w - 1)//{step} + 1")
    )


def pooled(draw: Draw, g: OneOp) -> Ref:
    """Means of neighbouring tokens."""
    return g.call("avg_pool1d.default", _features(g), [3], [1], [1])


def padded(draw: Draw, g: OneOp) -> Ref:
    """More tokens at both ends."""
    lo, hi = draw(FEW), draw(FEW)
    mode = draw(st.sampled_from(["constant", "replicate"]))
    return g.call("pad.default", _features(g), [lo, hi], mode, shape=(2, 4, f"h*w + {lo + hi}"))


def turned(draw: Draw, g: OneOp) -> Ref:
    """Tokens backwards, and pushed around."""
    x = tokens(g)
    back = g.call("flip.default", x, [1])
    return g.call("sub.Tensor", g.call("roll.default", x, [draw(st.integers(-5, 5))], [1]), back)


def one_taken(draw: Draw, g: OneOp) -> Ref:
    """A single token for all."""
    x = tokens(g)
    one = g.call("select.int", x, 1, draw(st.sampled_from([0, -1])), shape=(2, 4))
    return g.call("mul.Tensor", x, g.call("unsqueeze.default", one, 1, shape=(2, 1, 4)))


def enlarged(draw: Draw, g: OneOp) -> Ref:
    """Twice as many tokens, between those that are there."""
    return g.call("upsample_linear1d.vec", _features(g), None, False, [2.0], shape=(2, 4, "2*h*w"))


def repeated(draw: Draw, g: OneOp) -> Ref:
    """All tokens twice, and one of them another."""
    twice = g.call("repeat.default", tokens(g), [1, 2, 1], shape=(2, "2*h*w", 4))
    return g.call("select_scatter.default", twice, g.param(2, 4), 1, 0, shape=(2, "2*h*w", 4))


def beside_others(draw: Draw, g: OneOp) -> Ref:
    """Tokens beside values of which each is a row of its own."""
    return g.call("cat.default", [tokens(g), g.input(2, "h*w", 4)], 2, shape=(2, "h*w", 8))


def few_rows(draw: Draw, g: OneOp) -> Ref:
    """Of a few rows, one by itself, and their sum by weights."""
    first = g.call("slice.Tensor", image(g), 2, 0, 1, shape=(2, 4, 1, "w"))
    last = g.call("slice.Tensor", image(g), 2, -1, None, shape=(2, 4, 1, "w"))
    both = g.call("cat.default", [first, last], 2, shape=(2, 4, 2, "w"))
    one = g.part(g.call("unbind.int", both, 2, shape=[(2, 4, "w")] * 2), draw(st.integers(0, 1)))
    mixed = g.call("einsum.default", "nchw,hk->nckw", [both, g.param(2, 1)], shape=(2, 4, 1, "w"))
    x = g.call("mul.Tensor", image(g), g.call("unsqueeze.default", one, 2, shape=(2, 4, 1, "w")))
    return g.call("add.Tensor", x, mixed)


def both_means(draw: Draw, g: OneOp) -> Ref:
    """Coordinate attention: means of rows and of columns go through one operation, and are taken apart."""
    x = image(g)
    rows = g.call("mean.dim", x, [3], True, shape=(2, 4, "h", 1))
    columns = g.call("mean.dim", x, [2], True, shape=(2, 4, 1, "w"))
    turned = g.call("permute.default", columns, [0, 1, 3, 2], shape=(2, 4, "w", 1))
    both = g.call("cat.default", [rows, turned], 2, shape=(2, 4, "h + w", 1))
    mixed = g.call("conv2d.default", both, g.param(4, 4, 1, 1))
    parts = g.call("split_with_sizes.default", mixed, [Size("h"), Size("w")], 2, shape=[(2, 4, "h", 1), (2, 4, "w", 1)])
    down, across = g.part(parts, 0), g.part(parts, 1)
    across = g.call("permute.default", across, [0, 1, 3, 2], shape=(2, 4, 1, "w"))
    return g.call("mul.Tensor", g.call("mul.Tensor", x, down), across)


@pytest.mark.parametrize(
    "build",
    [
        joined,
        split_off,
        convolved,
        pooled,
        padded,
        turned,
        one_taken,
        both_means,
        enlarged,
        repeated,
        beside_others,
        few_rows,
    ],
)
@given(data=st.data())
def test_rows_of_what_was_asked_for_equal_the_operations_on_everything(build: Any, data: Any) -> None:
    g = OneOp(data.draw(heights), data.draw(widths.filter(lambda w: w > 1)))
    x = build(data.draw, g)
    g.gives(x, g.call("neg.default", x))
    program = lower(g.graph, g.sizes, CPU)
    full = whole_values(program, g, data.draw)
    for id_, out in zip(program.outputs, g.graph.outputs, strict=True):
        same(full[id_], g.values[out], g.tolerance)
    execute_strips(program, g, data.draw(st.integers(1, program.rows + 1)))
