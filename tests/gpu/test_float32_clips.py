"""Clips in exact float32 take as long as the untiled model, after attention as well."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from sweeping.untiled import exact_float32
from torch import Tensor, nn

from tvae.pipeline import TiledVAE

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
CHANNELS = 256


class Clip(nn.Module):
    """Attention over all tokens, and residual blocks whose frames are padded by their own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.out = nn.Conv3d(16, CHANNELS, 3, padding=1), nn.Linear(CHANNELS, CHANNELS)
        self.norms = nn.ModuleList(nn.GroupNorm(32, CHANNELS) for _ in range(4))
        self.convolutions = nn.ModuleList(nn.Conv3d(CHANNELS, CHANNELS, 3) for _ in range(4))

    def decode(self, z: Tensor) -> Tensor:
        h: Tensor = self.first(z)
        sizes = h.shape[2:]
        tokens = h.flatten(2).transpose(1, 2)
        tokens = tokens + self.out(F.scaled_dot_product_attention(tokens, tokens, tokens))
        h = tokens.transpose(1, 2).unflatten(2, sizes)
        for norm, convolution in zip(self.norms, self.convolutions, strict=True):
            h = h + convolution(F.pad(F.silu(norm(h)), (1, 1, 1, 1, 2, 0), "replicate"))
        return h

    encode = decode


def seconds(run: Callable[[], Tensor]) -> float:
    torch.cuda.synchronize()
    begin = time.perf_counter()
    run()
    torch.cuda.synchronize()
    return time.perf_counter() - begin


@torch.no_grad()
def test_they_are_as_quick_as_the_untiled_model() -> None:
    model, z = Clip().cuda().eval(), torch.randn(1, 16, 5, 40, 48, device="cuda")
    tiled = TiledVAE(model)
    own, ours = [], []
    for _ in range(15):  # in turn, as other tests may have the card at the same time
        with exact_float32():
            own.append(seconds(lambda: model.decode(z)))
        ours.append(seconds(lambda: tiled.decode(z)))
    assert min(ours) < 2 * min(own), f"{min(ours):.4f} and {min(own):.4f} s"
    found = tiled.decode(z)
    exact = model.double().decode(z.double())
    assert float((found - exact).norm() / exact.norm()) < 1e-5
