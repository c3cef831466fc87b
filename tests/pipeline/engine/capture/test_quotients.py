"""Padding that a model computes from quotients of sizes stays whole-number arithmetic, layer after layer."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tvae.pipeline import TiledVAE
from tvae.pipeline.engine.capture.capture import capture


class SamePadded(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        down, across = (
            max((math.ceil(n / s) - 1) * s + k - n, 0)
            for n, s, k in zip(x.shape[-2:], self.stride, self.kernel_size, strict=True)
        )
        if down > 0 or across > 0:
            x = F.pad(x, [across // 2, across - across // 2, down // 2, down - down // 2])
        return super().forward(x)


class SamePaddedVAE(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.first, self.norm = SamePadded(3, 8, 3), nn.GroupNorm(2, 8)
        self.layers = nn.ModuleList(SamePadded(8, 8, 3 + 2 * (n % 2)) for n in range(layers))
        self.last, self.divisor = SamePadded(8, 4, 3), 1

    def encode(self, x: Tensor) -> Tensor:
        h = self.norm(self.first(x))
        for n, layer in enumerate(self.layers):
            h = h + F.silu(layer(h))
            if n % 4 == 1:
                h = F.avg_pool2d(h, 2)
            if n % 4 == 3:
                h = F.interpolate(h, scale_factor=2.0)
        return self.last(h)

    def decode(self, z: Tensor) -> Tensor:
        return z * math.floor(z.shape[2] / self.divisor) + math.ceil(z.shape[3] / self.divisor)


@torch.no_grad()
def test_a_model_of_many_padded_layers_is_cut() -> None:
    torch.manual_seed(0)
    model = SamePaddedVAE(8).eval()
    tiled, wide = TiledVAE(model, "cpu", strip=2), copy.deepcopy(model).double()
    for size in ((64, 32), (96, 32)):
        x = torch.randn(1, 3, *size)
        want = wide.encode(x.double())
        assert (tiled.encode(x).double() - want).norm() / want.norm() < 1e-5
    plan = tiled.plan((1, 3, 64, 32), "encode")
    assert not plan.whole
    assert plan.strips > 1


def test_padding_in_steps_of_one_is_a_number() -> None:
    model = SamePaddedVAE(8).eval()
    graph = capture(model, lambda x: [model.encode(x)], [torch.zeros(1, 3, 64, 32)])
    pads = [node.args[1] for node in graph.nodes if node.op in ("pad", "constant_pad_nd")]
    assert len(pads) == 10
    assert all(type(size) is int for pad in pads for size in pad)


@torch.no_grad()
@pytest.mark.parametrize("divisor", [1, 2, 3, -3])
def test_quotients_are_rounded_as_without(divisor: int) -> None:
    model, z = SamePaddedVAE(1).eval(), torch.randn(1, 4, 10, 7)
    model.divisor = divisor
    before = torch.SymInt.__truediv__, vars(torch.SymFloat)["__ceil__"], vars(torch.SymFloat)["__floor__"]
    tiled = TiledVAE(model, "cpu", strip=2)
    for x in (z, z[:, :, :9]):
        torch.testing.assert_close(tiled.decode(x), model.decode(x))
    after = torch.SymInt.__truediv__, vars(torch.SymFloat)["__ceil__"], vars(torch.SymFloat)["__floor__"]
    assert before == after
