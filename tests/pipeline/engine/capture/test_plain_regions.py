"""Models that switch gradients off, or on in a part: the exporter cuts a graph only where that may change something."""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tvae.pipeline import TiledVAE


class Switching(nn.Module):
    def __init__(self, switches: tuple[type[AbstractContextManager[Any]], ...]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.GroupNorm(2, 4)
        self.switches = switches

    def encode(self, x: Tensor) -> Tensor:
        h = self.first(x)
        for switch in self.switches:
            with switch():
                h = F.silu(self.second(h)) + h
        return h * 2

    decode = encode


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize(
    ("switches", "cut"),
    [
        ((torch.no_grad,), False),
        ((torch.no_grad, torch.no_grad), False),
        ((torch.enable_grad,), True),
        ((torch.no_grad, torch.enable_grad), True),
    ],
)
def test_its_own_numbers(switches: Any, cut: bool, grad: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    place = pytest.importorskip("torch._export.passes.replace_set_grad_with_hop_pass")
    made: list[Any] = []
    split = place.sequential_split
    monkeypatch.setattr(place, "sequential_split", lambda *args: made.append(args) or split(*args))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model = Switching(switches).eval()
    wide = copy.deepcopy(model).double()
    with torch.set_grad_enabled(grad):
        tiled = TiledVAE(model, "cpu", strip=3)
        for size in ((9, 6), (14, 5)):
            x = torch.randn(1, 3, *size)
            want = wide.encode(x.double()).detach()
            assert float((tiled.encode(x).detach() - want).norm() / want.norm()) < 1e-5
            assert tiled.plan((1, 3, *size), "encode").strips > 1
    assert bool(made) is cut
