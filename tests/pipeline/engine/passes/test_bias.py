"""Biases of convolutions: moved to what adds them for nothing, and never lost or added twice."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from one_op import CPU, OneOp, execute_strips, image
from rewrites import Fn, Layers, Outputs, all_rewritten, live, name, only, rewritten
from torch import Tensor

from tvae.pipeline.engine.ir.graph import Graph, Node
from tvae.pipeline.engine.lower import lower
from tvae.pipeline.engine.passes import remove_unused
from tvae.pipeline.engine.passes.bias import move_bias
from tvae.pipeline.engine.passes.norms import fuse_norm_act, fuse_residual


def fuse(graph: Graph) -> Graph:
    """The pass where it stands: behind those that find what takes a bias."""
    return move_bias(fuse_residual(fuse_norm_act(graph)))


def biases(graph: Graph) -> list[str | None]:
    """What each convolution adds, in order: the name of its bias."""
    found = (node.args[2] if len(node.args) > 2 else None for node in live(graph) if node.op.startswith("conv"))
    return [None if ref is None else graph.nodes[ref.id].target for ref in found]


def taken(graph: Graph, node: Node) -> str | None:
    """The name of the bias that a normalisation or a residual sum adds."""
    ref = node.args[5 if node.op == "norm_act" else 2]
    return None if ref is None else graph.nodes[ref.id].target


def before_a_norm(m: Layers, x: Tensor) -> Outputs:
    return F.silu(m.norm(m.conv(x)))


def before_a_norm_without_weights(m: Layers, x: Tensor) -> Outputs:
    return m.plain(m.conv(x))


def before_a_norm_of_tokens(m: Layers, x: Tensor) -> Outputs:
    return F.silu(m.norm(m.conv(x).flatten(2)))


def before_a_sum(m: Layers, x: Tensor) -> Outputs:
    return x + m.conv(x)


def before_a_doubling(m: Layers, x: Tensor) -> Outputs:
    h = m.conv(x)
    return h + h


def before_a_sum_and_a_norm(m: Layers, x: Tensor) -> Outputs:
    return F.silu(m.norm(m.conv(x) + x))


TAKEN: dict[Fn, tuple[str, str]] = {
    before_a_norm: ("norm_act", "conv.bias"),
    before_a_norm_without_weights: ("norm_act", "conv.bias"),
    before_a_norm_of_tokens: ("norm_act", "conv.bias"),
    before_a_sum: ("residual", "conv.bias"),
    before_a_doubling: ("residual", "tvae.sum_of.default"),
    before_a_sum_and_a_norm: ("residual", "conv.bias"),
}


@pytest.mark.parametrize("fn", TAKEN, ids=name)
def test_the_one_reader_takes_the_bias(fn: Fn) -> None:
    done = all_rewritten(fuse, *TAKEN)[fn]
    op, bias = TAKEN[fn]
    assert biases(done) == [None]
    assert taken(done, only(done, op)) == bias


def test_of_two_convolutions_that_are_summed_both_biases_are_added() -> None:
    def fn(m: Layers, x: Tensor) -> Outputs:
        return m.conv(x) + m.mix(x)

    done = rewritten(fn, fuse)
    assert biases(done) == [None, None]
    assert taken(done, only(done, "residual")) == "tvae.sum_of.default"
    total = only(done, "sum_of")
    assert {done.nodes[a.id].target for a in total.args} == {"conv.bias", "mix.bias"}
    assert total.meta.shape == (4,)


def test_of_two_convolutions_one_of_which_has_a_bias_that_one_is_added() -> None:
    def fn(m: Layers, x: Tensor) -> Outputs:
        return m.bare(x) + m.mix(x)

    done = rewritten(fn, fuse)
    assert biases(done) == [None, None]
    assert taken(done, only(done, "residual")) == "mix.bias"


def norm_and_sum(m: Layers, x: Tensor) -> Outputs:
    h = m.conv(x)
    return h + m.bare(F.silu(m.norm(h)))


def two_norms(m: Layers, x: Tensor) -> Outputs:
    h = m.conv(x)
    return F.silu(m.norm(h)) * m.norm2(h)


def norm_and_single_pixels(m: Layers, x: Tensor) -> Outputs:
    """A block whose result has other channels than its input."""
    h = m.conv(x)
    return m.point(h) + m.mix(F.silu(m.norm(h)))


def single_pixels_alone(m: Layers, x: Tensor) -> Outputs:
    return m.norm(m.point(m.point(m.conv(x))))


def single_pixels_at_a_stride(m: Layers, x: Tensor) -> Outputs:
    return m.norm(F.conv2d(m.conv(x), m.point.weight, stride=2))


def an_upsampling(m: Layers, x: Tensor) -> Outputs:
    h = F.conv_transpose2d(x, m.conv.weight, m.conv.bias, 2, 1)
    return h + m.bare(F.silu(m.norm(h)))


def through_frames(m: Layers, x: Tensor) -> Outputs:
    """A clip's frames as a batch, and a clip again."""
    h = m.conv(x).unflatten(0, (1, 2)).permute(0, 2, 1, 3, 4)
    return h + m.clip(F.silu(m.norm(h)))


def through_tokens(m: Layers, x: Tensor) -> Outputs:
    h = m.conv(x)
    return m.norm(h.reshape(2, 4, -1)), m.norm2(h.unsqueeze(2)), m.plain(h.unsqueeze(0).squeeze(0))


SHARED: dict[Fn, int] = {
    **{norm_and_sum: 2, two_norms: 2, norm_and_single_pixels: 2, single_pixels_alone: 1},
    **{single_pixels_at_a_stride: 1, an_upsampling: 2, through_frames: 2, through_tokens: 3},
}


@pytest.mark.parametrize("fn", SHARED, ids=name)
def test_each_of_several_readers_takes_the_bias(fn: Fn) -> None:
    done = all_rewritten(fuse, *SHARED)[fn]
    found = set(biases(done)) - {"clip.bias"}
    assert found == {None}
    takers = [node for node in live(done) if node.op in ("norm_act", "residual")]
    assert sum(taken(done, node) is not None for node in takers) == SHARED[fn]
    assert [node for node in takers if node.op == "residual" and node.args[1] is None] == []


def norm_and_convolution(m: Layers, x: Tensor) -> Outputs:
    h = m.conv(x)
    return m.bare(h) * F.silu(m.norm(h))


def norm_and_result(m: Layers, x: Tensor) -> Outputs:
    h = m.conv(x)
    return F.silu(m.norm(h)), h


def norm_and_single_pixels_with_a_border(m: Layers, x: Tensor) -> Outputs:
    h = m.conv(x)
    return m.norm(F.conv2d(h, m.point.weight, padding=(0, 1))), m.norm2(h)


def norm_and_single_pixels_in_groups(m: Layers, x: Tensor) -> Outputs:
    h = m.conv(x)
    return m.norm(F.conv2d(h, m.point.weight[:, :2], groups=2)), m.norm2(h)


def norm_and_single_pixels_of_a_result(m: Layers, x: Tensor) -> Outputs:
    h = m.conv(x)
    return F.conv2d(h, m.point.weight), m.norm(h)


def norm_and_channels_elsewhere(m: Layers, x: Tensor) -> Outputs:
    h = m.conv(x)
    return m.norm(h), F.group_norm(h.permute(0, 3, 2, 1), 1)


def norm_and_channels_in_groups(m: Layers, x: Tensor) -> Outputs:
    h = m.conv(x)
    return m.norm(h), m.plain(h.reshape(2, 2, 2, -1).reshape(2, 4, -1)) * m.plain(h.reshape(4, 2, -1).reshape(2, 4, -1))


MANY = (
    *(norm_and_convolution, norm_and_result, norm_and_single_pixels_with_a_border, norm_and_single_pixels_in_groups),
    *(norm_and_single_pixels_of_a_result, norm_and_channels_elsewhere, norm_and_channels_in_groups),
)


@pytest.mark.parametrize("fn", MANY, ids=name)
def test_where_several_read_the_value_with_its_bias_it_is_added_once(fn: Fn) -> None:
    done = all_rewritten(fuse, *MANY)[fn]
    assert set(biases(done)) == {None}
    sums = [node for node in live(done) if node.op == "residual" and node.args[1] is None]
    assert [taken(done, node) for node in sums] == ["conv.bias"]
    assert all(taken(done, node) is None for node in live(done) if node.op == "norm_act")


def result(m: Layers, x: Tensor) -> Outputs:
    return m.conv(x)


def before_anything_else(m: Layers, x: Tensor) -> Outputs:
    return m.conv(x).tanh()


def before_a_product_that_is_normalised(m: Layers, x: Tensor) -> Outputs:
    return m.norm(m.conv(x) * 2)


def before_a_sum_of_another_shape(m: Layers, x: Tensor) -> Outputs:
    return m.conv(x) + x.mean((2, 3), keepdim=True)


def sum_and_result(m: Layers, x: Tensor) -> Outputs:
    h = m.conv(x)
    return h + x, h


def sum_and_something_else(m: Layers, x: Tensor) -> Outputs:
    h = m.conv(x)
    return m.norm(h + x) * h.tanh()


KEPT = (
    *(result, before_anything_else, before_a_product_that_is_normalised, before_a_sum_of_another_shape),
    *(sum_and_result, sum_and_something_else),
)


@pytest.mark.parametrize("fn", KEPT, ids=name)
def test_a_bias_that_another_needs_stays(fn: Fn) -> None:
    assert biases(all_rewritten(fuse, *KEPT)[fn]) == ["conv.bias"]


def test_a_convolution_without_a_bias_stays() -> None:
    def fn(m: Layers, x: Tensor) -> Outputs:
        return F.silu(m.norm(m.bare(x))) + m.bare(x)

    done = rewritten(fn, fuse)
    assert biases(done) == [None, None]
    assert [taken(done, node) for node in live(done) if node.op in ("norm_act", "residual")] == [None, None]


@pytest.mark.parametrize("readers", [1, 2])
def test_a_norm_that_has_an_offset_keeps_it(readers: int) -> None:
    g = OneOp(5, 3)
    x, weight, bias, offset = image(g), g.param(4, 4, 3, 3), g.param(4), g.param(4)
    made = g.call("conv2d.default", x, weight, bias, [1, 1], [1, 1])
    y = F.group_norm(g.value(made) + g.value(offset).view(1, 4, 1, 1), 2, eps=1e-3)
    normed = g.fused("norm_act", made, 2, None, None, 1e-3, offset, None, value=y)
    outputs = [normed] if readers == 1 else [normed, made]
    done = remove_unused(move_bias(g.gives(*outputs).graph))
    assert only(done, "norm_act").args[5] is not None
    for strip in (1, 2, 5):
        execute_strips(lower(done, g.sizes, CPU), g, strip)


def test_a_sum_that_has_a_bias_keeps_it() -> None:
    g = OneOp(5, 3)
    x, weight, bias, more = image(g), g.param(4, 4, 3, 3), g.param(4), g.param(4)
    made = g.call("conv2d.default", x, weight, bias, [1, 1], [1, 1])
    total = g.value(made) + g.value(x) + g.value(more).view(1, 4, 1, 1)
    summed = g.fused("residual", made, x, more, value=total)
    done = remove_unused(move_bias(g.gives(summed).graph))
    for strip in (1, 2, 5):
        execute_strips(lower(done, g.sizes, CPU), g, strip)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_the_sum_of_two_biases_is_of_the_type_that_it_says(dtype: torch.dtype) -> None:
    g = OneOp(5, 3, dtype)
    x = image(g)
    convolved = [g.call("conv2d.default", x, g.param(4, 4, 1, 1), g.param(4)) for _ in range(2)]
    g.gives(g.call("add.Tensor", *convolved), tolerance=2e-2)
    done = fuse(g.graph)
    program = lower(done, g.sizes, CPU)
    execute_strips(program, g, 2)
    op = next(op for op in program.ops if op.name == "sum_of")
    values = {i: g.weights[program.params[i]] for i in op.inputs}
    assert op.run(lambda i, *_: values[i], 0, 0).dtype == op.dtype
