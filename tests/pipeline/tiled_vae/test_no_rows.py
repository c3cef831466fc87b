"""Parts of pictures that have no rows: a cut at the border, what is left over at an even height."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tvae.pipeline import TiledVAE


class Model(nn.Module):
    def __init__(self, part: Callable[[Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.part = nn.Conv2d(3, 4, 3, padding=1), part

    def encode(self, x: Tensor) -> Any:
        return self.part(self.first(x))

    decode = encode


PARTS: dict[str, Callable[[Tensor], Any]] = {
    "returned": lambda h: (h, h[:, :, :0]),
    "returned after more": lambda h: (h, 2 * h[:, :, h.shape[2] :]),
    "joined": lambda h: torch.cat([h[:, :, :0], h], 2),
    "summed": lambda h: h + (2 * h[:, :, : h.shape[2] % 2]).sum((2, 3), keepdim=True),
    "their mean": lambda h: h + h[:, :, :0].mean((2, 3), keepdim=True).nan_to_num(),
    "a sum that is returned": lambda h: (h, h[:, :, h.shape[2] :].sum((2, 3))),
}


@pytest.mark.long
@torch.no_grad()
@pytest.mark.parametrize("name", PARTS)
def test_the_results_are_the_models(name: str) -> None:
    model = Model(PARTS[name]).double().eval()
    tiled = TiledVAE(model, "cpu", strip=3)
    for shape in ((1, 3, 8, 6), (2, 3, 9, 5)):
        x = torch.randn(shape, dtype=torch.float64)
        found, expected = tiled.encode(x), model.encode(x)
        pairs = zip(found, expected, strict=True) if isinstance(expected, tuple) else [(found, expected)]
        assert all(a.shape == b.shape and torch.allclose(a, b, rtol=1e-10, atol=1e-12) for a, b in pairs)
