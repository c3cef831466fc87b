"""Attributes that somebody gave to weights: a call goes by those of the moment, where the model's code reads them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from model_of_function import ModelOfFunction
from torch import Tensor

from tvae.pipeline import TiledVAE
from tvae.pipeline.session import new_graph
from tvae.pipeline.session.identity.module_identity import identity_of


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """Counts captures, in a folder of graphs of their own."""
    count, real = [0], new_graph.capture

    def counted(*args: Any) -> Any:
        count[0] += 1
        return real(*args)

    monkeypatch.setattr(new_graph, "capture", counted)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return count


class Model(ModelOfFunction):
    def __init__(self, of: Callable[[Any, Tensor], Tensor] | None = None) -> None:
        super().__init__(of or scaled)
        self.register_buffer("table", torch.linspace(1, 2, 3))

    def encode(self, x: Tensor) -> Tensor:
        return self.conv(self.of(self, self.conv(x)))

    decode = encode


def scaled(model: Any, h: Tensor) -> Tensor:
    h = h * getattr(model.conv.weight, "gain", 1.0)
    if hasattr(model.table, "scales"):
        h = h * (model.table * model.table.scales)[:, None, None]
    return h + model.conv.bias.how["much"] if hasattr(model.conv.bias, "how") else h


def agrees(tiled: TiledVAE, model: Model) -> None:
    """With the model's own call; a copy of it would have no such attributes."""
    x = torch.randn(1, 3, 9, 6)
    with torch.no_grad():
        got, want = tiled.encode(x), model.encode(x)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.long
def test_attributes_of_weights_are_those_of_the_call(captures: list[int]) -> None:
    model = Model().eval()
    model.conv.weight.gain = 2.0  # type: ignore[assignment]
    tiled = TiledVAE(model, "cpu", strip=2)
    agrees(tiled, model)
    changes: list[Callable[[], object]] = [
        lambda: setattr(model.conv.weight, "gain", 3.0),
        lambda: setattr(model.table, "scales", torch.tensor([1.0, 3.0, 5.0])),
        lambda: model.table.scales.mul_(2),  # type: ignore[union-attr,operator]
        lambda: setattr(model.conv.bias, "how", {"much": 1.5}),
        lambda: model.conv.bias.how.update(much=2.5),  # type: ignore[union-attr,operator]
        lambda: delattr(model.conv.weight, "gain"),
        lambda: delattr(model.table, "scales"),
    ]
    for change in changes:
        change()
        agrees(tiled, model)
        agrees(TiledVAE(model, "cpu", strip=2), model)
    assert captures[0] == 1 + len(changes)


def test_of_other_types_too(captures: list[int]) -> None:
    """float16 with ``force_upcast`` is captured as another model of the same structure, without weights."""
    model = Model().eval().half()
    model.config = {"force_upcast": True}  # type: ignore[assignment]
    model.conv.weight.gain = 2.0  # type: ignore[assignment]
    tiled, x = TiledVAE(model, "cpu", strip=2), torch.randn(1, 3, 9, 6).half()
    with torch.no_grad():
        torch.testing.assert_close(tiled.encode(x), model.encode(x), rtol=2e-2, atol=2e-2)


def test_attributes_that_no_code_reads_cost_nothing(captures: list[int]) -> None:
    tiled = TiledVAE(model := Model().eval(), "cpu", strip=2)
    agrees(tiled, model)
    for value in (object(), 2.0, torch.ones(3)):
        model.conv.weight.of_an_optimizer = value  # type: ignore[assignment]
        agrees(tiled, model)
        assert identity_of(model).portable
    assert captures == [1]


def test_a_model_that_asks_whether_its_weights_require_gradients(captures: list[int]) -> None:
    def frozen(model: Any, h: Tensor) -> Tensor:
        return h * 2 if model.conv.weight.requires_grad else h * 3

    tiled = TiledVAE(model := Model(frozen).eval(), "cpu", strip=2)
    agrees(tiled, model)
    for required in (False, True):
        model.requires_grad_(required)
        agrees(tiled, model)
    assert captures == [2]


def test_others_may_be_frozen_between_calls(captures: list[int]) -> None:
    tiled = TiledVAE(model := Model().eval(), "cpu", strip=2)
    for required in (True, False):
        model.requires_grad_(required)
        agrees(tiled, model)
    assert captures == [1]
