"""What a call keeps of its input for later calls is state, also where the same input would give the same again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from model_of_function import ModelOfFunction
from torch import Tensor

from tvae.pipeline import TiledVAE
from tvae.pipeline.errors import UsageError


class Model(ModelOfFunction):
    def __init__(self, of: Callable[[Model, Tensor], Tensor]) -> None:
        super().__init__(of)
        self.kept: Any = None
        self.table: dict[Any, Tensor] = {}

    def encode(self, x: Tensor) -> Tensor:
        return self.of(self, x)

    decode = encode


def first_scale(model: Model, x: Tensor) -> Tensor:
    h = model.conv(x)
    if model.kept is None:
        model.kept = h.std()
    return h / model.kept


def first_scale_of_a_size(model: Model, x: Tensor) -> Tensor:
    h = model.conv(x)
    if len(model.table) == 0:
        model.table["mean"] = h.mean((2, 3), keepdim=True)
    return h - model.table["mean"]


def first_result(model: Model, x: Tensor) -> Tensor:
    if model.kept is None:
        model.kept = model.conv(x)
    return model.kept + x.mean() * 0 + 1


def of_the_same_object(model: Model, x: Tensor) -> Tensor:
    if model.kept is None or model.kept[0] is not x:
        model.kept = (x, model.conv(x))
    return model.kept[1] * 2


def mask_of_a_size(model: Model, x: Tensor) -> Tensor:
    if model.kept is None or model.kept.shape != x.shape:
        model.kept = torch.ones_like(x) * 0.5
    return model.conv(x) * model.kept


def ramp_of_a_size(model: Model, x: Tensor) -> Tensor:
    if model.kept is None or model.kept.shape[-1] != x.shape[-1]:
        model.kept = torch.arange(x.shape[-1], dtype=x.dtype)
    return model.conv(x) + model.kept


def scratch(model: Model, x: Tensor) -> Tensor:
    model.kept = model.conv(x)
    return model.kept * 2


@torch.no_grad()
@pytest.mark.parametrize("of", [first_scale, first_scale_of_a_size, first_result], ids=lambda of: of.__name__)
def test_what_the_first_input_decides_is_refused(of: Callable[[Model, Tensor], Tensor]) -> None:
    model = Model(of).eval()
    for _ in range(2):
        with pytest.raises(UsageError, match=r"keeps state between calls: encode\(\) changes (kept|table)"):
            TiledVAE(model, "cpu", strip=2).encode(torch.randn(1, 3, 8, 6))
    assert model.kept is None
    assert not model.table


@torch.no_grad()
@pytest.mark.parametrize(
    "of", [of_the_same_object, mask_of_a_size, ramp_of_a_size, scratch], ids=lambda of: of.__name__
)
def test_what_other_inputs_do_not_meet_does_no_harm(of: Callable[[Model, Tensor], Tensor]) -> None:
    model, reference = Model(of).eval(), Model(of).eval()
    tiled = TiledVAE(model, "cpu", strip=2)
    for size in ((8, 6), (8, 6), (13, 7), (8, 6)):
        x = torch.randn(1, 3, *size)
        torch.testing.assert_close(tiled.encode(x), reference.encode(x), rtol=1e-5, atol=1e-5)
