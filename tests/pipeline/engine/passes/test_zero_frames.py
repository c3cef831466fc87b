"""Causal convolutions of as many frames as they have taps: zeros are not multiplied, and nothing else is left out."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from rewrites import Fn, Layers, Outputs, all_rewritten, expect, name, only, picture, rewritten
from torch import Tensor

from tvae.pipeline.engine.ir.fused_ops import last_taps
from tvae.pipeline.engine.ir.graph import Graph
from tvae.pipeline.engine.passes.convolutions import leave_out_zero_frames, leave_zeros_to_convolutions


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


def dilated(m: Layers, x: Tensor) -> Outputs:
    return F.conv3d(before(x[:, :, :3], 2), m.clip.weight, dilation=(2, 1, 1))


def frames_of_its_own(m: Layers, x: Tensor) -> Outputs:
    return F.conv3d(F.pad(x[:, :, :1], (0, 0, 0, 0, 2, 0)), m.clip.weight, padding=1)


STAY = (*(several_results, frames_behind, ones, columns_too, dilated, frames_of_its_own),)


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
