"""Models whose weights have several types compute with each in its own on a GPU as well."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tvae.pipeline import TiledVAE

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
CHANNELS = 128


class Mixed(nn.Module):
    """Convolutions in one type, norms in float32, a scale in float64."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Conv2d(4, CHANNELS, 3, padding=1), nn.Conv2d(CHANNELS, 3, 3, padding=1)
        self.norms = nn.ModuleList(nn.GroupNorm(32, CHANNELS) for _ in range(3))
        self.convolutions = nn.ModuleList(nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1) for _ in range(3))
        self.register_buffer("scale", torch.rand(CHANNELS, 1, 1, dtype=torch.float64) + 0.5)

    def decode(self, z: Tensor) -> Tensor:
        h = self.first(z)
        for norm, convolution in zip(self.norms, self.convolutions, strict=True):
            h = h + convolution(F.silu(norm(h.to(norm.weight.dtype))).to(h.dtype))
        return self.last((h * self.scale).to(h.dtype))

    encode = decode


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("size", [(24, 40), (96, 64)])
@pytest.mark.parametrize("strip", [None, 8])
def test_each_weight_keeps_its_type(dtype: torch.dtype, size: tuple[int, int], strip: int | None) -> None:
    plain = Mixed().cuda().eval()
    model = copy.deepcopy(plain)
    for part in (model.first, model.last, model.convolutions):
        part.to(dtype)
    z = torch.randn(2, 4, *size, device="cuda").to(dtype)
    want = copy.deepcopy(model).double().decode(z.double())

    def error(found: Tensor) -> float:
        assert found.dtype == dtype
        return float((found.double() - want).norm() / want.norm())

    tiled = TiledVAE(model, strip=strip)
    ours = max(error(tiled.decode(z)) for _ in range(3))
    most = 1e-5 if dtype == torch.float32 else 1.05 * error(model.decode(z))  # so few pixels leave some to chance
    assert ours <= most
