"""Borders that convolutions add themselves, borders that come with a norm, and casts around what only moves."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from rewrites import Fn, Layers, Outputs, count, expect, name, only, picture, rewritten
from torch import Tensor, nn

from tvae.pipeline.engine.capture.capture import capture
from tvae.pipeline.engine.ir.graph import Graph
from tvae.pipeline.engine.lower import lower
from tvae.pipeline.engine.passes import simplify
from tvae.pipeline.engine.passes.bias import move_bias
from tvae.pipeline.engine.passes.clean_up import drop_casts
from tvae.pipeline.engine.passes.convolutions import leave_zeros_to_convolutions
from tvae.pipeline.engine.passes.norms import fuse_norm_act, fuse_norm_pad
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
