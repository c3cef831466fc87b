"""Values that have all rows and are not divided, beside others that are: a strip takes its rows of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from one_op import CPU, OneOp, execute_strips, image, tokens

from tvae.pipeline.engine.ir.graph import Ref
from tvae.pipeline.engine.lower import lower


def whole(g: OneOp) -> Ref:
    return g.param(2, 4, g.sizes["h"], g.sizes["w"])


def one_row(g: OneOp) -> Ref:
    """All of a map in the one row of another dimension, as windows as high as the picture are."""
    six = g.call("slice.Tensor", image(g), 2, 0, 6, shape=(2, 4, 6, "w"))
    rows = g.call("permute.default", six, [2, 0, 1, 3], shape=(6, 2, 4, "w"))
    windows = g.call("reshape.default", rows, [1, 6, 2, 4, g.sizes["w"]], shape=(1, 6, 2, 4, "w"))
    back = g.call("permute.default", windows, [0, 2, 3, 1, 4], shape=(1, 2, 4, 6, "w"))
    return g.call("reshape.default", back, [2, 4, 6, g.sizes["w"]], shape=(2, 4, 6, "w"))


def first_rows(g: OneOp) -> Ref:
    return g.call("slice.Tensor", image(g), 2, 0, 6, shape=(2, 4, 6, "w"))


def added(g: OneOp) -> Ref:
    return g.call("add.Tensor", image(g), whole(g), shape=(2, 4, "h", "w"))


def added_to_fewer_rows(g: OneOp) -> Ref:
    return g.call("add.Tensor", first_rows(g), g.param(6, 1), shape=(2, 4, 6, "w"))


def chosen(g: OneOp) -> Ref:
    return g.call("maximum.default", one_row(g), first_rows(g), shape=(2, 4, 6, "w"))


def joined(g: OneOp) -> Ref:
    return g.call("cat.default", [whole(g), image(g)], 1, shape=(2, 8, "h", "w"))


def stacked(g: OneOp) -> Ref:
    return g.call("stack.default", [image(g), whole(g)], shape=(2, 2, 4, "h", "w"))


def stacked_last(g: OneOp) -> Ref:
    return g.call("stack.default", [one_row(g), first_rows(g)], -1, shape=(2, 4, 6, "w", 2))


def multiplied(g: OneOp) -> Ref:
    left = g.call("unsqueeze.default", image(g), -1, shape=(2, 4, "h", "w", 1))
    return g.call("matmul.default", left, g.param(2, 4, g.sizes["h"], 1, 3), shape=(2, 4, "h", "w", 3))


def whole_queries(g: OneOp) -> Ref:
    x = tokens(g)
    return g.call("scaled_dot_product_attention.default", g.param(2, 3, 4), x, x, shape=(2, 3, 4))


BUILDS: tuple[Callable[[OneOp], Ref], ...] = (
    added,
    added_to_fewer_rows,
    chosen,
    joined,
    stacked,
    stacked_last,
    multiplied,
    whole_queries,
)


@pytest.mark.parametrize("build", BUILDS)
def test_a_strip_takes_its_rows(build: Callable[[OneOp], Ref]) -> None:
    g = OneOp(7, 3)
    g.gives(build(g))
    program = lower(g.graph, g.sizes, CPU)
    for strip in (1, 2, 4, 7):
        execute_strips(program, g, strip)
