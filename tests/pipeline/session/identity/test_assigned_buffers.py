"""Buffers that a model's call replaces: state where a result depends on them, scratch where none does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from model_of_function import ModelOfFunction
from torch import Tensor

from tvae.pipeline import TiledVAE
from tvae.pipeline.errors import UsageError


class Model(ModelOfFunction):
    def __init__(self, of: Callable[[Model, Tensor], Tensor]) -> None:
        super().__init__(of)
        self.register_buffer("count", torch.tensor(1.0))
        self.register_buffer("mean", torch.zeros(1, 3, 1, 1))
        self.register_buffer("seen", None)

    def encode(self, x: Tensor) -> Tensor:
        return self.of(self, self.conv(x))

    decode = encode


def counted(model: Model, h: Tensor) -> Tensor:
    model.count = model.count + 1
    return h * model.count


def averaged(model: Model, h: Tensor) -> Tensor:
    model.mean = 0.9 * model.mean + 0.1 * h.mean((2, 3), keepdim=True)
    return h - model.mean


def read_first(model: Model, h: Tensor) -> Tensor:
    h = h - model.mean
    model.mean = h.mean((2, 3), keepdim=True)
    return h


def noted(model: Model, h: Tensor) -> Tensor:
    model.mean = h.mean((2, 3), keepdim=True)
    return h


def made_again(model: Model, h: Tensor) -> Tensor:
    model.mean = h.mean((2, 3), keepdim=True) * 2
    return h - model.mean


def filled(model: Model, h: Tensor) -> Tensor:
    model.seen = h.mean((2, 3), keepdim=True)
    return h + model.seen


@torch.no_grad()
@pytest.mark.parametrize("of", [counted, averaged, read_first], ids=lambda of: of.__name__)
def test_results_that_depend_on_the_calls_before_are_refused(of: Callable[[Model, Tensor], Tensor]) -> None:
    model = Model(of).eval()
    before = {name: (t, t.clone()) for name, t in model.named_buffers()}
    for _ in range(2):
        with pytest.raises(UsageError, match=r"keeps state between calls: encode.. changes (count|mean)"):
            TiledVAE(model, "cpu", strip=2).encode(torch.randn(1, 3, 8, 6))
    now = dict(model.named_buffers())
    assert all(now[name] is t and torch.equal(t, values) for name, (t, values) in before.items())


@torch.no_grad()
@pytest.mark.parametrize("of", [noted, made_again, filled], ids=lambda of: of.__name__)
def test_what_each_call_only_writes_does_no_harm(of: Callable[[Model, Tensor], Tensor]) -> None:
    model = Model(of).eval()
    tiled = TiledVAE(model, "cpu", strip=2)
    for rows in (8, 13, 8):
        x = torch.randn(1, 3, rows, 6)
        torch.testing.assert_close(tiled.encode(x), model.encode(x), rtol=1e-5, atol=1e-5)
