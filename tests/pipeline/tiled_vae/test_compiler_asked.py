"""Models that compute something else for a compiler: a call gives what they compute without one."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from model_of_function import ModelOfFunction
from torch import Tensor, nn
from torch.compiler import is_compiling

from tvae.pipeline import TiledVAE


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


class Model(ModelOfFunction):
    def encode(self, x: Tensor) -> Tensor:
        return self.conv(x) * (2 if self.of(self, x) else 3)

    decode = encode


ASKED: dict[str, Callable[[Any, Tensor], Any]] = {
    "compiling": lambda model, x: torch.compiler.is_compiling(),
    "exporting": lambda model, x: torch.compiler.is_exporting(),
    "imported": lambda model, x: is_compiling(),
    "of dynamo": lambda model, x: torch._dynamo.is_compiling(),
    "of utils": lambda model, x: torch._utils.is_compiling(),
    "by name": lambda model, x: getattr(torch.compiler, "is_compiling")(),  # noqa: B009
}


@pytest.mark.filterwarnings("ignore:.*is_compiling")
@pytest.mark.parametrize("name", ASKED)
@torch.no_grad()
def test_no_compiler_is_at_work(name: str) -> None:
    tiled, x = TiledVAE(model := Model(ASKED[name]).eval(), "cpu", strip=2), torch.randn(1, 3, 9, 6)
    want = copy.deepcopy(model).double().encode(x.double())
    assert float((tiled.encode(x) - want).norm() / want.norm()) < 1e-5


@torch.no_grad()
def test_other_threads_are_told_nothing() -> None:
    seen: set[tuple[bool, bool]] = set()
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.001):
            seen.add((torch.compiler.is_compiling(), is_compiling()))

    other = threading.Thread(target=look)
    other.start()
    try:
        TiledVAE(Model(lambda model, x: True).eval(), "cpu", strip=2).encode(torch.randn(1, 3, 9, 6))
    finally:
        over.set()
        other.join()
    assert seen == {(False, False)}


class Attention(ModelOfFunction):
    """PyTorch's own, which has a way of its own for a call without a compiler, which an exporter cannot take."""

    def __init__(self) -> None:
        super().__init__(lambda model, x: x)
        self.attention = nn.MultiheadAttention(3, 1, batch_first=True)
        self.layer = nn.TransformerEncoderLayer(3, 1, 8, batch_first=True)

    def encode(self, x: Tensor) -> Tensor:
        t = self.conv(x).flatten(2).transpose(1, 2)
        return self.layer(t + self.attention(t, t, t)[0]).transpose(1, 2).reshape(x.shape)

    decode = encode


@torch.no_grad()
def test_layers_of_pytorch_are_told() -> None:
    tiled, x = TiledVAE(model := Attention().eval(), "cpu", strip=2), torch.randn(1, 3, 9, 6)
    want = copy.deepcopy(model).double().encode(x.double())
    assert float((tiled.encode(x) - want).norm() / want.norm()) < 1e-5


def compiled(function: Any) -> Any:
    return torch.compile(function, backend="eager")


CALLERS: dict[str, Callable[[TiledVAE], Callable[[Tensor], Tensor]]] = {
    "a function": lambda tiled: compiled(lambda x: tiled.encode(x) * 2 + 1),
    "a method": lambda tiled: lambda x: compiled(tiled.encode)(x) * 2 + 1,
    "the wrapper": lambda tiled: lambda x: compiled(tiled).encode(x) * 2 + 1,
    "a module": lambda tiled: compiled(Pipeline(tiled)),
}


class Pipeline(nn.Module):
    def __init__(self, tiled: TiledVAE) -> None:
        super().__init__()
        self.vae = tiled

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.vae.encode(x) * 2
        return found + min(self.vae.plan(tuple(x.shape), "encode").peak_bytes, 1)


@pytest.mark.parametrize("caller", CALLERS)
@torch.no_grad()
def test_a_caller_is_compiled(caller: str) -> None:
    """The compiler does not look into tvae, and each call sees the model as it is."""
    tiled, x = TiledVAE(model := Model(lambda *_: True).eval(), "cpu", strip=2), torch.randn(1, 3, 9, 6)
    call = CALLERS[caller](tiled)
    for gain in (1, 2):
        model.conv.weight.mul_(gain)
        assert torch.allclose(call(x), model.encode(x) * 2 + 1, atol=1e-5)
