"""Narrow convolutions: found at both ends of a model, with the norm in front, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch.nn.functional as F
from rewrites import Fn, Layers, Outputs, expect, name, rewritten
from torch import Tensor

from tvae.pipeline.engine.ir.graph import Graph
from tvae.pipeline.engine.passes import convolutions
from tvae.pipeline.engine.passes.norms import fuse_norm_act


@pytest.fixture(autouse=True)
def four_are_many() -> Iterator[None]:
    """The layers have four channels."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(convolutions, "_MANY", 4)
        yield


def rewrite(graph: Graph) -> Graph:
    return convolutions.fuse_narrow_conv(fuse_norm_act(graph))


def from_few(m: Layers, x: Tensor) -> Outputs:
    return m.norm(m.conv(x[:, :2].repeat(1, 2, 1, 1)))


def from_few_without_bias(m: Layers, x: Tensor) -> Outputs:
    return F.conv2d(x, m.conv.weight, padding=1)


def a_point(m: Layers, x: Tensor) -> Outputs:
    return m.point(x)


@pytest.mark.parametrize("fn", [from_few, from_few_without_bias, a_point], ids=name)
def test_convolutions_from_a_few_channels(fn: Fn) -> None:
    expect(rewritten(fn, rewrite), {"conv2d": 0, "conv_from_few": 1})


def to_few(m: Layers, x: Tensor) -> Outputs:
    return m.conv(F.silu(m.norm(x)))


def to_few_without_activation(m: Layers, x: Tensor) -> Outputs:
    return m.bare(m.plain(x))


@pytest.mark.parametrize("fn", [to_few, to_few_without_activation], ids=name)
def test_convolutions_to_a_few_channels_take_the_norm(fn: Fn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolutions, "_MOST_TO", 36)
    done = rewritten(fn, lambda graph: _to_few_alone(graph, monkeypatch))
    expect(done, {"conv2d": 0, "conv_to_few": 1, "norm_act": 0})


def _to_few_alone(graph: Graph, patch: pytest.MonkeyPatch) -> Graph:
    """The layers have as many channels on both sides: what reads a norm is taken as going to a few."""
    with patch.context() as local:
        local.setattr(convolutions, "_few_inside", lambda *_: False)
        return rewrite(graph)


def strided(m: Layers, x: Tensor) -> Outputs:
    return F.conv2d(x, m.conv.weight, stride=2, padding=1)


def smaller(m: Layers, x: Tensor) -> Outputs:
    return F.conv2d(x, m.conv.weight)


def in_groups(m: Layers, x: Tensor) -> Outputs:
    return F.conv2d(x, m.conv.weight[:, :1], padding=1, groups=4)


@pytest.mark.parametrize("fn", [strided, smaller, in_groups], ids=name)
def test_others_stay(fn: Fn) -> None:
    expect(rewritten(fn, rewrite), {"conv2d": 1})


def test_many_channels_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolutions, "_MOST_FROM", 35)
    monkeypatch.setattr(convolutions, "_MOST_TO", 35)
    expect(rewritten(to_few, rewrite), {"conv2d": 1, "norm_act": 1})
