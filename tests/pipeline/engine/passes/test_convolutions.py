"""Passes around convolutions: zeros, sums, strides, zero frames before a clip."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from rewrites import Fn, Layers, Outputs, all_rewritten, count, expect, name, only, picture, rewritten
from torch import Tensor, nn

from tvae.pipeline.engine.capture.capture import capture
from tvae.pipeline.engine.ir.fused_ops import last_taps
from tvae.pipeline.engine.ir.graph import Graph
from tvae.pipeline.engine.lower import lower
from tvae.pipeline.engine.passes import remove_unused, simplify
from tvae.pipeline.engine.passes.bias import move_bias
from tvae.pipeline.engine.passes.clean_up import drop_casts
from tvae.pipeline.engine.passes.convolutions import (
    fuse_conv_add,
    fuse_conv_stats,
    fuse_strided_conv,
    leave_out_zero_frames,
    leave_zeros_to_convolutions,
)
from tvae.pipeline.engine.passes.norms import fuse_norm_act, fuse_norm_pad, fuse_residual
from tvae.pipeline.engine.plan.schedule import schedule
from tvae.pipeline.engine.run.execute import execute


def around(m: Layers, x: Tensor) -> Outputs:
    return F.conv2d(F.pad(x, (1, 1, 1, 1)), m.conv.weight, m.conv.bias)


def in_a_padding_of_its_own(m: Layers, x: Tensor) -> Outputs:
    """The convolution adds rows itself; columns may come from the pad."""
    return F.conv2d(F.pad(x, (1, 1)), m.conv.weight, padding=(1, 0))


def with_steps(m: Layers, x: Tensor) -> Outputs:
    return F.conv2d(F.pad(x, (1, 1, 1, 1)), m.conv.weight, stride=2)


LEFT: list[Fn] = [around, in_a_padding_of_its_own, with_steps]


@pytest.mark.parametrize("fn", LEFT, ids=name)
def test_zeros_on_both_sides_are_the_convolutions(fn: Fn) -> None:
    expect(rewritten(fn, leave_zeros_to_convolutions), {"pad": 0, "conv2d": 1})


def causal(m: Layers, x: Tensor) -> Outputs:
    return F.conv3d(F.pad(x, (1, 1, 1, 1, 2, 0)), m.clip.weight, m.clip.bias)


def test_what_lies_on_one_side_stays() -> None:
    done = rewritten(causal, leave_zeros_to_convolutions, picture(1, 4, 3, 6, 5))
    assert list(only(done, "pad").args[1]) == [0, 0, 0, 0, 2, 0]
    assert list(only(done, "conv3d").args[4]) == [0, 1, 1]
    assert list(only(done, "conv3d").args[3]) == [1, 1, 1]  # no number, which is refused for three


def one_sided(m: Layers, x: Tensor) -> Outputs:
    return F.conv2d(F.pad(x, (0, 1, 0, 1)), m.conv.weight, stride=2)


def one_sided_of_two_kinds(m: Layers, x: Tensor) -> Outputs:
    return F.conv2d(F.pad(x, (1, 0, 0, 1)), m.conv.weight, m.conv.bias, stride=2)


def in_one_dimension(m: Layers, x: Tensor) -> Outputs:
    return F.conv2d(F.pad(x, (0, 1)), m.conv.weight, m.conv.bias, stride=(1, 2), padding=(1, 0))


@pytest.mark.parametrize("fn", [one_sided, one_sided_of_two_kinds, in_one_dimension], ids=name)
def test_zeros_on_one_side_need_no_copy_where_the_convolution_takes_steps(fn: Fn) -> None:
    expect(rewritten(fn, leave_zeros_to_convolutions), {"pad": 0, "conv2d": 0, "uneven_conv": 1})


def down_and_normed(m: Layers, x: Tensor) -> Outputs:
    return m.norm(F.conv2d(F.pad(x, (0, 1, 0, 1)), m.conv.weight, m.conv.bias, stride=2))


def test_its_bias_goes_to_the_norm() -> None:
    done = rewritten(down_and_normed, lambda graph: move_bias(fuse_norm_act(leave_zeros_to_convolutions(graph))))
    assert only(done, "uneven_conv").args[2] is None
    assert only(done, "norm_act").args[5] is not None


def without_steps(m: Layers, x: Tensor) -> Outputs:
    """Cutting down the result would copy as much."""
    return F.conv2d(F.pad(x, (0, 1, 0, 1)), m.conv.weight)


def with_steps_and_a_kernel_that_reaches_less(m: Layers, x: Tensor) -> Outputs:
    return F.conv2d(F.pad(x, (0, 1, 0, 1)), m.point.weight, stride=2)


def of_something_else(m: Layers, x: Tensor) -> Outputs:
    return F.conv2d(F.pad(x, (1, 1, 1, 1), value=0.5), m.conv.weight)


def of_its_own_rows(m: Layers, x: Tensor) -> Outputs:
    return F.conv2d(F.pad(x, (1, 1, 1, 1), "replicate"), m.conv.weight)


def read_by_others(m: Layers, x: Tensor) -> Outputs:
    h = F.pad(x, (1, 1, 1, 1))
    return F.conv2d(h, m.conv.weight), h


def on_top_of_padding(m: Layers, x: Tensor) -> Outputs:
    return F.conv2d(F.pad(x, (1, 1, 1, 1)), m.conv.weight, padding=1)


def wider_than_the_kernel(m: Layers, x: Tensor) -> Outputs:
    return F.conv2d(F.pad(x, (1, 1, 1, 1)), m.point.weight)


OTHERS: list[Fn] = [
    *(without_steps, with_steps_and_a_kernel_that_reaches_less),
    *(of_something_else, of_its_own_rows, read_by_others, on_top_of_padding, wider_than_the_kernel),
]


@pytest.mark.parametrize("fn", OTHERS, ids=name)
def test_other_borders_stay(fn: Fn) -> None:
    expect(rewritten(fn, leave_zeros_to_convolutions), {"pad": 1})


def replicated(m: Layers, x: Tensor) -> Outputs:
    return m.bare(F.pad(F.silu(m.norm(m.conv(x))), (1, 1, 1, 1), "replicate"))


def down(m: Layers, x: Tensor) -> Outputs:
    return F.conv2d(F.pad(m.norm(x), (0, 1, 0, 1)), m.conv.weight, stride=2)


def reflected(m: Layers, x: Tensor) -> Outputs:
    return m.bare(F.pad(m.plain(x), (1, 2, 3, 1), "reflect"))


def clip(m: Layers, x: Tensor) -> Outputs:
    return F.conv3d(F.pad(F.silu(m.norm(x)), (1, 1, 1, 1, 2, 0), "replicate"), m.clip.weight)


def with_norms(graph: Graph) -> Graph:
    return fuse_norm_pad(fuse_norm_act(graph))


@pytest.mark.parametrize("fn", [replicated, down, reflected, clip], ids=name)
def test_a_norm_is_written_with_its_borders(fn: Fn) -> None:
    done = rewritten(fn, with_norms, picture(1, 4, 3, 6, 5) if fn is clip else None)
    expect(done, {"pad": 0, "norm_pad": 1, "norm_act": 0})


def norm_read_twice(m: Layers, x: Tensor) -> Outputs:
    h = m.norm(x)
    return m.bare(F.pad(h, (1, 1, 1, 1), "replicate")), h


def norm_with_ones_around(m: Layers, x: Tensor) -> Outputs:
    return m.bare(F.pad(m.norm(x), (1, 1, 1, 1), value=1.0))


def cropped(m: Layers, x: Tensor) -> Outputs:
    return m.bare(F.pad(m.norm(x), (0, 0, -1, 1)))


@pytest.mark.parametrize("fn", [norm_read_twice, norm_with_ones_around, cropped], ids=name)
def test_other_norms_keep_their_pad(fn: Fn) -> None:
    expect(rewritten(fn, with_norms), {"norm_pad": 0, "norm_act": 1})


class Enlarged(nn.Module):
    """In bfloat16, by way of float32, as Wan does it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return F.interpolate(x.float(), scale_factor=2, mode="nearest-exact").type_as(x) * self.weight

    def wider(self, x: Tensor) -> Tensor:
        """The wide values go on."""
        y = F.interpolate(x.float(), scale_factor=2, mode="nearest-exact")
        return y.type_as(x) + y.square().type_as(x)


@pytest.mark.parametrize("fn", [Enlarged.forward, Enlarged.wider], ids=lambda f: f.__name__)
def test_casts_around_a_move_are_dropped(fn: Fn) -> None:
    module = Enlarged().bfloat16()
    x = picture(1, 4, 6, 5).bfloat16()
    plain = simplify(capture(module, lambda t: [fn(module, t)], [x]))  # type: ignore[arg-type]
    done = drop_casts(plain)
    assert count(plain)["to"] == 1
    assert count(done)["to"] == (0 if fn is Enlarged.forward else 1)
    sizes = done.bind([tuple(x.shape)])
    assert sizes is not None
    weights = {"weight": module.weight.detach()} | done.constants
    (y,) = execute(schedule(lower(done, sizes, x.device), 2), [x], weights)
    with torch.no_grad():
        assert torch.equal(y, fn(module, x))  # type: ignore[arg-type]


def rewrite(graph: Graph) -> Graph:
    return remove_unused(fuse_conv_add(move_bias(fuse_residual(fuse_norm_act(graph)))))


def a_sum(m: Layers, x: Tensor) -> Outputs:
    return x + m.conv(x)


def the_convolution_first(m: Layers, x: Tensor) -> Outputs:
    return m.bare(x) + x


def a_sum_with_a_norm_behind(m: Layers, x: Tensor) -> Outputs:
    h = m.conv(F.silu(m.norm(x))) + x
    return F.silu(m.norm2(h)), h


@pytest.mark.parametrize("fn", [a_sum, the_convolution_first, a_sum_with_a_norm_behind], ids=name)
def test_the_convolution_adds(fn: Fn) -> None:
    expect(rewritten(fn, rewrite), {"conv2d": 0, "residual": 0, "conv_add": 1})


def a_shortcut(m: Layers, x: Tensor) -> Outputs:
    return m.point(x) + m.conv(x)


def test_the_larger_kernel_adds_the_smaller_ones_result() -> None:
    expect(rewritten(a_shortcut, rewrite), {"conv2d": 1, "residual": 0, "conv_add": 1})


def two_convolutions(m: Layers, x: Tensor) -> Outputs:
    return m.conv(x) + m.mix(x)


def test_of_two_convolutions_one_adds_the_other() -> None:
    expect(rewritten(two_convolutions, rewrite), {"conv2d": 1, "residual": 0, "conv_add": 1})


def read_twice(m: Layers, x: Tensor) -> Outputs:
    h = m.bare(x)
    return m.norm(h + x), F.silu(h)


def doubled(m: Layers, x: Tensor) -> Outputs:
    h = m.bare(x)
    return m.norm(h + h)


def points(m: Layers, x: Tensor) -> Outputs:
    return m.point(x) + x


def clips(m: Layers, x: Tensor) -> Outputs:
    clip = x.unsqueeze(0).transpose(1, 2)
    return (m.clip(clip) + clip).squeeze(0)


def wider(m: Layers, x: Tensor) -> Outputs:
    return F.conv2d(x, m.conv.weight, padding=2) + F.pad(x, (1, 1, 1, 1))


def dilated(m: Layers, x: Tensor) -> Outputs:
    return F.conv2d(x, m.conv.weight, padding=2, dilation=2) + x


@pytest.mark.parametrize("fn", [read_twice, doubled, points, clips, wider, dilated], ids=name)
def test_what_it_does_not_take(fn: Fn) -> None:
    expect(rewritten(fn, rewrite), {"residual": 1, "conv_add": 0})


def summed(graph: Graph) -> Graph:
    return remove_unused(fuse_conv_stats(rewrite(graph), lambda outer, inner, kernel: kernel == 3))


def one_after_the_other(m: Layers, x: Tensor) -> Outputs:
    return F.silu(m.norm2(m.conv(F.silu(m.norm(m.bare(x))))))


def test_what_adds_nothing_is_summed_where_the_kernel_takes_it() -> None:
    expect(rewritten(one_after_the_other, summed), {"conv2d": 0, "conv_add": 2})
    expect(rewritten(a_shortcut, summed), {"conv2d": 1, "conv_add": 1})
    expect(rewritten(two_convolutions, summed), {"conv2d": 0, "conv_add": 2})


@pytest.mark.parametrize("fn", [clips, wider, dilated], ids=name)
def test_what_is_not_summed(fn: Fn) -> None:
    expect(rewritten(fn, summed), {"conv_add": 0})


def with_its_bias(m: Layers, x: Tensor) -> Outputs:
    return torch.sigmoid(m.conv(x))


def test_a_bias_that_nobody_takes_stays_with_the_convolution() -> None:
    (found,) = [n for n in rewritten(with_its_bias, summed).nodes if n.op == "conv_add"]
    assert found.args[2] is None
    assert found.args[3] is not None


def rewrite_strided(graph: Graph) -> Graph:
    return fuse_strided_conv(leave_zeros_to_convolutions(graph), lambda *sizes: sizes[2] == 3)


def halved(m: Layers, x: Tensor) -> Outputs:
    return F.conv2d(F.pad(x, (0, 1, 0, 1)), m.conv.weight, m.conv.bias, stride=2)


def halved_without_bias(m: Layers, x: Tensor) -> Outputs:
    return F.conv2d(F.pad(x, (0, 1, 0, 1)), m.conv.weight, stride=2)


@pytest.mark.parametrize("fn", [halved, halved_without_bias], ids=name)
def test_it_is_one_operation(fn: Fn) -> None:
    expect(rewritten(fn, rewrite_strided), {"pad": 0, "uneven_conv": 0, "down_conv": 1})


def zeros_in_front(m: Layers, x: Tensor) -> Outputs:
    return F.conv2d(F.pad(x, (1, 0, 1, 0)), m.conv.weight, m.conv.bias, stride=2)


def zeros_on_the_right_alone(m: Layers, x: Tensor) -> Outputs:
    return F.conv2d(F.pad(x, (0, 1)), m.conv.weight, m.conv.bias, stride=2)


@pytest.mark.parametrize("fn", [zeros_in_front, zeros_on_the_right_alone], ids=name)
def test_others_stay(fn: Fn) -> None:
    expect(rewritten(fn, rewrite_strided), {"uneven_conv": 1, "down_conv": 0})


def test_what_no_kernel_takes_stays() -> None:
    asked = list[tuple[int, int, int]]()

    def refused(graph: Graph) -> Graph:
        return fuse_strided_conv(leave_zeros_to_convolutions(graph), lambda *sizes: bool(asked.append(sizes)))

    expect(rewritten(halved, refused), {"uneven_conv": 1, "down_conv": 0})
    assert set(asked) == {(4, 4, 3)}


def leave_out(graph: Graph) -> Graph:
    """The pass where it stands: the borders around a picture are the convolution's already."""
    return leave_out_zero_frames(leave_zeros_to_convolutions(graph))


def before(frames: Tensor, zeros: int, **more: float) -> Tensor:
    return F.pad(frames, (1, 1, 1, 1, zeros, 0), **more)


def one_frame(m: Layers, x: Tensor) -> Outputs:
    return m.clip(x[:, :, :1]), F.conv3d(before(x[:, :, :1], 2), m.clip.weight, m.clip.bias)


def two_frames(m: Layers, x: Tensor) -> Outputs:
    return F.conv3d(before(x[:, :, :2], 1), m.clip.weight)


def at_a_step(m: Layers, x: Tensor) -> Outputs:
    return F.conv3d(before(x[:, :, :1], 2), m.clip.weight, m.clip.bias, stride=(2, 1, 1))


def read_by_another(m: Layers, x: Tensor) -> Outputs:
    padded = F.pad(x[:, :, :1], (0, 0, 0, 0, 2, 0))
    return F.conv3d(padded, m.clip.weight, m.clip.bias, padding=(0, 1, 1)) + padded.sum(2, keepdim=True)


LEFT_OUT: dict[Fn, int] = {one_frame: 1, two_frames: 2, at_a_step: 1, read_by_another: 1}


@pytest.mark.parametrize("fn", LEFT_OUT, ids=name)
def test_frames_of_zeros_are_left_out(fn: Fn) -> None:
    done = all_rewritten(leave_out, *LEFT_OUT, shape=(2, 4, 3, 6, 5))[fn]
    assert only(done, "last_taps").meta.shape == (4, 4, LEFT_OUT[fn], 3, 3)
    expect(done, {"pad": int(fn is read_by_another), "constant_pad_nd": 0})


def several_results(m: Layers, x: Tensor) -> Outputs:
    return F.conv3d(before(x[:, :, :2], 2), m.clip.weight)


def frames_behind(m: Layers, x: Tensor) -> Outputs:
    return F.conv3d(F.pad(x[:, :, :1], (1, 1, 1, 1, 0, 2)), m.clip.weight)


def ones(m: Layers, x: Tensor) -> Outputs:
    return F.conv3d(before(x[:, :, :1], 2, value=1.0), m.clip.weight)


def columns_too(m: Layers, x: Tensor) -> Outputs:
    return F.conv3d(F.pad(x[:, :, :1], (0, 1, 0, 0, 2, 0)), m.clip.weight, padding=(0, 1, 1))


def dilated_zero_frames(m: Layers, x: Tensor) -> Outputs:
    return F.conv3d(before(x[:, :, :3], 2), m.clip.weight, dilation=(2, 1, 1))


def frames_of_its_own(m: Layers, x: Tensor) -> Outputs:
    return F.conv3d(F.pad(x[:, :, :1], (0, 0, 0, 0, 2, 0)), m.clip.weight, padding=1)


STAY = (*(several_results, frames_behind, ones, columns_too, dilated_zero_frames, frames_of_its_own),)


@pytest.mark.parametrize("fn", STAY, ids=name)
def test_anything_else_stays(fn: Fn) -> None:
    done = all_rewritten(leave_out, *STAY, shape=(1, 4, 3, 6, 5))[fn]
    expect(done, {"last_taps": 0, "pad": 1})


def test_frames_of_zeros_on_both_sides_stay() -> None:
    def fn(m: Layers, x: Tensor) -> Outputs:
        return F.conv3d(F.pad(x[:, :, :1], (0, 0, 0, 0, 1, 1)), m.clip.weight, padding=(0, 1, 1))

    expect(rewritten(fn, leave_out_zero_frames, picture(1, 4, 3, 6, 5)), {"last_taps": 0, "pad": 1})


def test_taps_lie_as_the_weight_does() -> None:
    plain = torch.randn(4, 6, 3, 3, 3, generator=torch.Generator().manual_seed(2))
    last = plain.contiguous(memory_format=torch.channels_last_3d)
    of_plain, of_last = last_taps(None, plain, 1), last_taps(None, last, 1)
    assert torch.equal(of_plain, plain[:, :, 1:])
    assert torch.equal(of_last, of_plain)
    assert of_plain.is_contiguous()
    assert of_last.is_contiguous(memory_format=torch.channels_last_3d)
