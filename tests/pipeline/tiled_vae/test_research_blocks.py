"""Constructs of research repositories: each gives the module's own numbers in strips, or is refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from research_blocks import BLOCKS, CHANNELS, WHOLE
from torch import Tensor, nn

from tvae.pipeline import TiledVAE
from tvae.pipeline.errors import UnsupportedOp


class Model(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fn, parts = BLOCKS[name]
        self.first = nn.Conv2d(3, CHANNELS, 3, padding=1)
        for part, made in parts.items():
            setattr(self, part, made())

    def encode(self, x: Tensor) -> Any:
        return self.fn(self, self.first(x))

    decode = encode


def tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
        return
    for each in value.values() if isinstance(value, dict) else value:
        yield from tensors(each)


@pytest.mark.long
@torch.no_grad()
@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_gives_its_own_numbers(name: str) -> None:
    model, wide = Model(name).eval(), Model(name).eval().double()
    if name in WHOLE:
        with pytest.raises(UnsupportedOp, match="allow_whole"):
            TiledVAE(model, "cpu", strip=3).encode(torch.zeros(1, 3, 24, 12))
    tiled = TiledVAE(model, "cpu", strip=3, allow_whole=name in WHOLE)
    for size in ((16, 12), (33, 10)):
        x = torch.randn(1, 3, *size)
        want, got = tensors(wide.encode(x.double())), tensors(tiled.encode(x))
        for one, other in zip(got, want, strict=True):
            assert one.shape == other.shape
            assert float((one - other).norm() / other.norm()) < 1e-5
        plan = tiled.plan((1, 3, *size), "encode")
        assert bool(plan.whole) is (name in WHOLE)
        assert plan.whole or plan.strips > 1
