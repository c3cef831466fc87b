"""What somebody has put in the place of PyTorch's functions and methods, and calls them, is captured once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tvae.pipeline import TiledVAE

USES: dict[str, tuple[Any, Callable[[Tensor], Tensor]]] = {
    "silu": (F, lambda h: F.silu(h)),
    "pad": (F, lambda h: F.pad(h, (1, 1))),
    "add": (Tensor, lambda h: h.add(1.0)),
    "mul": (Tensor, lambda h: h.mul(1.5)),
    "clamp": (Tensor, lambda h: h.clamp(-0.2, 0.3)),
    "__mul__": (Tensor, lambda h: h * 1.5),
    "mean": (Tensor, lambda h: h - h.mean((2, 3), keepdim=True)),
    "split": (Tensor, lambda h: h.split(2, 1)[1]),
}


class Model(nn.Module):
    def __init__(self, use: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.use = nn.Conv2d(3, 4, 3, padding=1), use

    def encode(self, x: Tensor) -> Tensor:
        return self.use(self.conv(x))

    decode = encode


@torch.no_grad()
@pytest.mark.parametrize("name", USES)
def test_its_numbers_before_and_after(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, use = USES[name]
    own, model = getattr(place, name), Model(use).eval()
    tiled = TiledVAE(model, "cpu", strip=4)

    def agrees() -> Tensor:
        x = torch.randn(1, 3, 11, 8, generator=torch.Generator().manual_seed(1))
        want = model.encode(x)
        assert float((tiled.encode(x) - want).norm() / want.norm()) < 1e-5
        return want

    def patched(h: Tensor, *args: Any, **kwargs: Any) -> Any:
        found = own(h, *args, **kwargs)
        return [torch.add(part, 0.3) for part in found] if name == "split" else torch.add(found, 0.3)

    before = agrees()
    monkeypatch.setattr(place, name, patched)
    assert not torch.allclose(agrees(), before)
    assert getattr(place, name) is patched
    monkeypatch.undo()
    assert torch.equal(agrees(), before)
