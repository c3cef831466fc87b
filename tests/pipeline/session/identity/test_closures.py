"""Classes that a function makes differ by what their methods' closures hold."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from tvae.pipeline import TiledVAE


def model_of(function: Callable[[Tensor], Tensor]) -> nn.Module:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.conv = nn.Conv2d(3, 4, 3, padding=1)

        def encode(self, x: Tensor) -> Tensor:
            return function(self.conv(x))

        decode = encode

    return Model().eval()


@torch.no_grad()
def test_each_has_its_own_graph() -> None:
    x = torch.randn(1, 3, 12, 8)
    for function in (torch.tanh, torch.sigmoid, lambda h: h * 2, lambda h: h * 3):
        model = model_of(function)
        torch.testing.assert_close(TiledVAE(model, "cpu", strip=4).encode(x), model.encode(x), rtol=1e-5, atol=1e-5)
