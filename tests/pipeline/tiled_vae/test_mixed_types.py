"""Models with weights of several types: each is computed with in its own, and inputs are of any of these types."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from model_of_function import ModelOfFunction
from torch import Tensor, nn

from tvae.pipeline import TiledVAE
from tvae.pipeline.errors import UsageError


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


class Model(ModelOfFunction):
    """own: a parameter of another type than the others, which comes first."""

    def __init__(self, of: Callable[[Any, Tensor], Tensor], own: Tensor | None = None) -> None:
        super().__init__(of)
        self.norm, self.other = nn.GroupNorm(3, 3), nn.Conv2d(3, 3, 3, padding=1)
        if own is not None:
            self.own = nn.Parameter(own, requires_grad=False)

    def encode(self, x: Tensor) -> Tensor:
        return self.conv(self.of(self, self.norm(self.conv(x))))

    decode = encode


def by_fine_numbers(model: Any, h: Tensor) -> Tensor:
    """What it adds is lost where the own weights are rounded to the type of the others."""
    fine = h.to(model.own.dtype)
    return ((fine * model.own[:, None, None] - fine) * model.finest).to(h.dtype)


def convolved(model: Any, h: Tensor) -> Tensor:
    return model.other(h.to(model.other.weight.dtype)).to(h.dtype)


def quantised(model: Any, h: Tensor) -> Tensor:
    return F.conv2d(h, model.own.to(h.dtype) / 40, padding=1)


def turned(model: Any, h: Tensor) -> Tensor:
    return h * model.own.angle()[:, None, None]


def fine(numbers: float, dtype: torch.dtype) -> Tensor:
    return 1 + torch.linspace(0.1, 0.9, 3, dtype=torch.float64).div(numbers).to(dtype)


def agrees(tiled: TiledVAE, model: Model, dtype: torch.dtype, close: float) -> None:
    x = torch.randn(1, 3, 9, 6).to(dtype)
    with torch.no_grad():
        got, want = tiled.encode(x), model.encode(x)
    assert got.dtype == want.dtype == dtype
    assert tiled.plan(tuple(x.shape), "encode").strips > 1
    assert float((got.double() - want.double()).norm() / want.double().norm()) < close


@pytest.mark.parametrize(
    ("kind", "of_others", "finest", "close"),
    [(torch.float64, torch.float32, 1e9, 1e-5), (torch.float32, torch.bfloat16, 1e4, 1e-2)],
    ids=["float64", "float32"],
)
@pytest.mark.parametrize("buffer", [False, True], ids=["parameter", "buffer"])
def test_weights_that_are_finer_than_the_others(
    kind: torch.dtype, of_others: torch.dtype, finest: float, close: float, buffer: bool
) -> None:
    model = Model(by_fine_numbers).to(of_others).eval()
    model.finest = finest  # type: ignore[assignment]
    if buffer:
        model.register_buffer("own", fine(finest, kind))
    else:
        model.own = nn.Parameter(fine(finest, kind), requires_grad=False)
    tiled = TiledVAE(model, "cpu", strip=2)
    agrees(tiled, model, of_others, close)
    model.own.data.mul_(1 + 3 / finest)
    agrees(tiled, model, of_others, close)


@pytest.mark.parametrize("kind", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_layers_of_another_type(kind: torch.dtype) -> None:
    model = Model(convolved).eval()
    model.other.to(kind)  # the parameters of the others come first
    tiled = TiledVAE(model, "cpu", strip=2)
    agrees(tiled, model, torch.float32, 1e-2 if kind.itemsize < 4 else 1e-5)
    with torch.inference_mode():
        model.load_state_dict({name: t.clone() for name, t in model.state_dict().items()}, assign=True)
    agrees(tiled, model, torch.float32, 1e-2 if kind.itemsize < 4 else 1e-5)


OWN = {
    "int8": (quantised, (torch.linspace(-40, 40, 81).reshape(3, 3, 3, 3)).to(torch.int8)),
    "float8": (quantised, torch.linspace(-40, 40, 81).reshape(3, 3, 3, 3).to(torch.float8_e4m3fn)),
    "complex": (turned, torch.polar(torch.ones(3), torch.linspace(0, 2, 3))),
}


@pytest.mark.parametrize("name", OWN)
def test_types_that_no_input_has_may_come_first(name: str) -> None:
    model = Model(*OWN[name]).eval()
    assert next(iter(model.parameters())) is model.own
    agrees(TiledVAE(model, "cpu", strip=2), model, torch.float32, 1e-5)


def test_an_input_of_no_type_of_theirs_is_refused() -> None:
    with pytest.raises(UsageError, match="got bfloat16 on cpu, the VAE is float32 on cpu"):
        TiledVAE(Model(*OWN["int8"]).eval(), "cpu").encode(torch.randn(1, 3, 9, 6).bfloat16())
