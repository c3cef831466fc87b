"""Weights that are written to before every call, in ways that count no version: each call has those of the moment."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tvae.pipeline import TiledVAE

X = torch.randn(1, 3, 9, 6, generator=torch.Generator().manual_seed(1))


class Mixed(nn.Module):
    """Its kernel is made of weights, once for as long as those stay."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.kernels, self.shares = nn.Parameter(torch.randn(3, 4, 3, 3, 3)), nn.Parameter(torch.randn(3))

    def encode(self, x: Tensor) -> Tensor:
        return F.conv2d(x, (self.kernels * self.shares.softmax(0)[:, None, None, None, None]).sum(0), padding=1)

    decode = encode


WRITES: dict[str, Callable[[Mixed], object]] = {
    "data": lambda model: model.shares.data[0].add_(1),
    "of another": lambda model: model.kernels.data[1].add_(1),
    "numpy": lambda model: model.shares.detach().numpy().__imul__(-1.5),
    "none": lambda model: None,
}


@torch.no_grad()
@pytest.mark.parametrize(
    "order",
    [
        ("data", "data", "data"),
        ("data", "of another", "numpy"),
        ("numpy", "none", "data", "data"),
        ("none", "of another", "of another"),
    ],
    ids="-".join,
)
def test_every_write_is_seen(order: tuple[str, ...]) -> None:
    model = Mixed().eval()
    tiled = TiledVAE(model, "cpu", strip=2)
    tiled.encode(X)
    for write in order:
        WRITES[write](model)
        want = copy.deepcopy(model).double().encode(X.double())
        assert float((tiled.encode(X) - want).norm() / want.norm()) < 1e-5


@torch.no_grad()
def test_turned_signs_are_seen_in_float64() -> None:
    """They differ in the highest bit of each word alone."""
    model = Mixed().double().eval()
    tiled = TiledVAE(model, "cpu", strip=2)
    for _ in range(3):
        assert torch.allclose(tiled.encode(X.double()), model.encode(X.double()), rtol=1e-10, atol=1e-12)
        model.kernels.data.neg_()
