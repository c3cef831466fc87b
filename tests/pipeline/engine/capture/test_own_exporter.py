"""Exports of other threads while a model is captured, and captures while another thread exports."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor, nn

from tvae.pipeline import TiledVAE

X = torch.randn(1, 3, 9, 8, generator=torch.Generator().manual_seed(1))


class Meets(nn.Module):
    """Another thread does something while its code runs."""

    def __init__(self, meanwhile: Callable[[], Any] | None = None) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.meanwhile = [meanwhile] if meanwhile else []

    def forward(self, x: Tensor) -> Tensor:
        for task in self.meanwhile:
            thread = threading.Thread(target=task)
            thread.start()
            thread.join(60)
        h: Tensor = self.conv(x)
        return h * 2

    encode = decode = forward


def exported(model: nn.Module) -> Tensor:
    found: Tensor = torch.export.export(model, (X,), strict=False).module()(X)
    return found


@torch.no_grad()
def test_each_is_as_if_the_other_were_not() -> None:
    plain, other = Meets().eval(), Meets().eval()
    found, runs = SimpleQueue[Tensor](), SimpleQueue[Tensor]()  # a list that it writes to would be the model's state
    before = vars(nn.Module)["__call__"], vars(nn.Module)["__getattr__"]
    captured = Meets(lambda: found.put(exported(plain))).eval()
    got = TiledVAE(captured, "cpu", strip=4).encode(X)
    assert torch.allclose(found.get(timeout=1), plain(X))

    tiled = TiledVAE(other, "cpu", strip=4)
    around = Meets(lambda: runs.put(tiled.encode(X))).eval()
    seen = exported(around)
    assert torch.allclose(runs.get(timeout=1), other(X), atol=1e-6)
    for model, result in ((captured, got), (around, seen)):
        model.meanwhile.clear()
        assert torch.allclose(result, model(X), atol=1e-6)
    assert (vars(nn.Module)["__call__"], vars(nn.Module)["__getattr__"]) == before
