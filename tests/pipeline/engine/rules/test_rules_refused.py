"""What rules refuse, by name, and exact results when it runs whole."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from one_op import CPU, OneOp, clip_tokens, folded, image, tokens
from refusals import Build, refused_and_exact

from tvae.pipeline.engine.ir.graph import Ref
from tvae.pipeline.engine.ir.sizes import Size
from tvae.pipeline.engine.lower import lower
from tvae.pipeline.engine.rules import RULES, NoRule
from tvae.pipeline.errors import UnsupportedOp


def _token_image(g: OneOp) -> Ref:
    """[N, C, T·h, w]: rows with an outer factor in a spatial dimension."""
    x = g.input(2, 4, 2, "h", "w")
    return g.call("view.default", x, [2, 4, -1, Size("w")], shape=(2, 4, "2*h", "w"))


def _rows_in_channels(g: OneOp) -> Ref:
    return g.call("transpose.int", image(g), 1, 2, shape=(2, "h", 4, "w"))


def _square(g: OneOp, x: Ref) -> tuple[Ref, Ref]:
    """A value with rows down and one with rows across."""
    return x, g.call("transpose.int", x, -2, -1, shape=(2, 1, 1, "h"))


REFUSED: dict[str, tuple[str, Build]] = {}


def refused(why: str) -> Callable[[Build], Build]:
    """Register a graph that must be refused, and a word of the reason."""

    def register(build: Build) -> Build:
        REFUSED[build.__name__] = (why, build)
        return build

    return register


@refused("different dimensions")
def rows_down_and_across_plus_rows_across(g: OneOp) -> Ref:
    down, across = _square(g, g.input(2, 1, "h", 1))
    both = g.call("sub.Tensor", down, across, shape=(2, 1, "h", "h"))
    turned = g.call("transpose.int", both, 2, 3)
    return g.call("sub.Tensor", both, turned)


@refused("in different ways")
def tokens_plus_rows_merged_otherwise(g: OneOp) -> Ref:
    return g.call("add.Tensor", clip_tokens(g), g.input(2, "2*h*w", 4))


@refused("rows are in the features")
def linear_over_the_rows(g: OneOp) -> Ref:
    x = g.call("transpose.int", tokens(g), 1, 2, shape=(2, 4, "h*w"))
    return g.call("linear.default", x, g.param(2, g.number("h*w")), shape=(2, 4, 2))


@refused("own statistics")
def batch_norm_in_training(g: OneOp) -> Ref:
    return g.call("batch_norm.default", image(g), None, None, None, None, True, 0.1, 1e-5, True)


@refused("wider than the kernel")
def padding_wider_than_the_kernel(g: OneOp) -> Ref:
    x, w = image(g), g.param(3, 4, 1, 1)
    return g.call("conv2d.default", x, w, None, [1, 1], [1, 0], shape=(2, 3, "h + 2", "w"))


@refused("merged with another dimension")
def window_over_merged_rows(g: OneOp) -> Ref:
    x, w = _token_image(g), g.param(3, 4, 3, 1)
    return g.call("conv2d.default", x, w, None, [1, 1], [1, 0], shape=(2, 3, "2*h", "w"))


@refused("channels")
def convolution_over_rows_in_channels(g: OneOp) -> Ref:
    x, w = _rows_in_channels(g), g.param(3, g.sizes["h"], 1, 1)
    return g.call("conv2d.default", x, w, shape=(2, 3, 4, "w"))


@refused("merged with another dimension")
def upsampling_of_merged_rows(g: OneOp) -> Ref:
    return g.call("upsample_nearest2d.vec", _token_image(g), None, [2.0, 1.0], shape=(2, 4, "4*h", "w"))


@refused("merged with another dimension")
def pixel_shuffle_of_merged_rows(g: OneOp) -> Ref:
    return g.call("pixel_unshuffle.default", _token_image(g), 1, shape=(2, 4, "2*h", "w"))


@refused("channels")
def pixel_shuffle_of_rows_in_channels(g: OneOp) -> Ref:
    x = g.input(2, "4*h", 2, 3)
    return g.call("pixel_shuffle.default", x, 2, shape=(2, "h", 4, 6))


@refused("scatters the rows")
def a_view_that_mixes_rows(g: OneOp) -> Ref:
    x = g.call("permute.default", image(g, 4), [0, 2, 1, 3], shape=(2, "h", 4, "w"))
    return g.call("reshape.default", x, [8, Size("h"), -1], shape=(8, "h", "w"))


@refused("another type")
def a_view_as_another_type(g: OneOp) -> Ref:
    return g.call("view.dtype", image(g), torch.int64)


@refused("selects one element of rows that are merged")
def one_token_selected(g: OneOp) -> Ref:
    return g.call("select.int", clip_tokens(g), 1, -1, shape=(2, 4))


@refused("slice along rows that are merged")
def slice_along_merged_rows(g: OneOp) -> Ref:
    return g.call("slice.Tensor", clip_tokens(g), 1, 1, shape=(2, "2*h*w - 1", 4))


@refused("repeats rows that are merged")
def tokens_repeated(g: OneOp) -> Ref:
    return g.call("repeat.default", clip_tokens(g), [1, 2, 1], shape=(2, "4*h*w", 4))


@refused("over the rows")
def a_norm_that_does_not_add_up(g: OneOp) -> Ref:
    return g.call("linalg_vector_norm.default", image(g), 0, [2], shape=(2, 4, "w"))


@refused("mask")
def a_mask_that_splits_its_rows_otherwise(g: OneOp) -> Ref:
    x, mask = clip_tokens(g), g.input("2*h*w", 1)
    return g.call("scaled_dot_product_attention.default", x, x, x, mask)


@refused("a sum over the rows")
def a_sum_over_rows_of_a_weight(g: OneOp) -> Ref:
    return g.call("matmul.default", g.param(2, 3, g.number("h*w")), tokens(g), shape=(2, 3, 4))


@refused("vector")
def a_product_with_a_vector(g: OneOp) -> Ref:
    return g.call("matmul.default", tokens(g), g.param(4), shape=(2, "h*w"))


@refused("one side has its rows in the batch")
def rows_in_the_batch_of_one_side_only(g: OneOp) -> Ref:
    y = g.call("transpose.int", folded(g), 1, 2, shape=("2*h", 4, "w"))
    x = g.call("reshape.default", tokens(g), [-1, 4], shape=("2*h*w", 4))
    return g.call("matmul.default", x, y, shape=("2*h", "2*h*w", "w"))


@refused("in the keys only")
def grid_of_tiled_keys_alone(g: OneOp) -> Ref:
    rows = g.call("arange.default", Size("h"), dtype=torch.float64, shape=("h",))
    grid = g.call("meshgrid.indexing", [g.param(3), rows], indexing="ij", shape=[(3, "h")] * 2)
    return g.call("add.Tensor", g.part(grid, 1), g.call("sum.default", image(g), shape=()))


@refused("tvae has no rule for it")
def an_operation_nobody_knows(g: OneOp) -> Ref:
    return g.call("renorm.default", image(g), 2, 1, 1.0)


@refused("tvae has no rule for it")
def an_operation_with_two_results_nobody_knows(g: OneOp) -> Ref:
    return g.part(g.call("frexp.Tensor", image(g), shape=[(2, 4, "h", "w")] * 2), 0)


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_by_name_and_exact_when_run_whole(name: str) -> None:
    refused_and_exact(*REFUSED[name])


def test_no_rule_takes_a_value_with_rows_out_of_the_strips_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RULES, "relu", lambda ctx, node: ctx.whole(node, barrier=True))
    g = OneOp(7, 3)
    g.gives(g.call("relu.default", image(g)))
    with pytest.raises(UnsupportedOp, match="its result grows with the height"):
        lower(g.graph, g.sizes, CPU)
    assert lower(g.graph, g.sizes, CPU, allow_whole=True).whole


def test_a_rule_says_no_with_the_exception_that_means_it() -> None:
    assert issubclass(NoRule, Exception)
    assert not issubclass(NoRule, UnsupportedOp)
    assert "renorm" not in RULES


@refused("writes into some rows, which are merged")
def one_token_written(g: OneOp) -> Ref:
    return g.call("select_scatter.default", clip_tokens(g), g.param(2, 4), 1, 0, shape=(2, "2*h*w", 4))


@refused("more than one number")
def several_numbers_written(g: OneOp) -> Ref:
    places = g.param(value=torch.tensor([0, 3]))
    return g.call("index_put.default", image(g), [None, places], g.param(2, 1, 1))


@refused("rows by their numbers")
def rows_by_their_numbers(g: OneOp) -> Ref:
    x = image(g)
    return g.call("gather.default", x, 2, g.call("to.dtype", g.call("gt.Scalar", x, 9.0), torch.int64))


@refused("over the rows and other dimensions")
def the_number_of_the_largest_of_all(g: OneOp) -> Ref:
    return g.call("argmax.default", image(g), shape=())


@refused("topk over the rows")
def the_largest_rows(g: OneOp) -> Ref:
    return g.part(g.call("topk.default", image(g), 2, 2, shape=[(2, 4, 2, "w")] * 2), 0)


@refused("rows gate rows")
def rows_that_gate_rows(g: OneOp) -> Ref:
    x = g.input(2, 4, "2*h", "w")
    return g.call("glu.default", x, 2, shape=(2, 4, "h", "w"))
