"""Interpolation in a model's own region of ``torch.autocast`` on a GPU: its types, and as exact as its own call."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tvae.pipeline import TiledVAE

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
MODES: list[dict[str, Any]] = [
    *({"mode": mode} for mode in ("nearest", "nearest-exact", "bilinear", "bicubic")),
    *({"mode": mode, "antialias": True} for mode in ("bilinear", "bicubic")),
]


class Enlarges(nn.Module):
    def __init__(self, how: dict[str, Any], dtype: torch.dtype | None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.conv = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.how, self.dtype = how, dtype

    def encode(self, x: Tensor) -> Tensor:
        h = self.first(x)
        with torch.autocast("cuda", dtype=self.dtype, enabled=self.dtype is not None):
            enlarged = F.interpolate(self.conv(h), scale_factor=2.0, **self.how)
            return self.conv(enlarged) + enlarged

    decode = encode


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("how", MODES, ids=str)
def test_in_a_region_of_the_models_own(how: dict[str, Any], dtype: torch.dtype) -> None:
    model = Enlarges(how, dtype).cuda().eval()
    wide = Enlarges(how, None).cuda().double().eval()
    tiled, own, ours = TiledVAE(model, strip=4), 0.0, 0.0
    for size in ((16, 12), (21, 20), (40, 9)):
        x = torch.randn(1, 3, *size, device="cuda")
        want, got, exact = model.encode(x), tiled.encode(x), wide.encode(x.double())
        assert got.dtype == want.dtype
        own += float((want - exact).norm() / exact.norm())
        ours += float((got - exact).norm() / exact.norm())
    assert own > 1e-5, "the part is not in another precision"
    assert ours <= 1.02 * own
