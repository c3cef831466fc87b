"""Attention whose operands are convolutions' results takes what its plan says: PyTorch's plain way would hold all
weights, N x N of each head, twice."""

from __future__ import annotations

import pytest
import torch
from of_convolutions import OfConvolutions
from sweeping.untiled import exact_float32

from tvae.pipeline import TiledVAE

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
MIB = 1 << 20


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("preset", ["auto", "cpu"])  # the second without kernels
@pytest.mark.parametrize(("heads", "width"), [(1, 512), (1, 288), (1, 128), (2, 64)])
@pytest.mark.parametrize("strip", [None, 32])
@torch.no_grad()
def test_it_takes_what_was_said(dtype: torch.dtype, preset: str, heads: int, width: int, strip: int | None) -> None:
    torch.manual_seed(4)
    model = OfConvolutions(heads, width, causal=False).cuda().to(dtype).eval()
    x = torch.randn(1, 3, 96, 112, device="cuda").to(dtype)  # weights of 440 MiB a head in float32
    tiled = TiledVAE(model, preset, strip=strip)
    found = tiled.encode(x)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() - x.nbytes
    for _ in range(2):
        again = tiled.encode(x)
        assert torch.equal(again, found)
    said, took = tiled.plan(tuple(x.shape), "encode").peak_bytes, torch.cuda.max_memory_allocated() - before
    assert took <= said + 24 * MIB
    assert said <= 1.6 * took + 24 * MIB
    with exact_float32():
        exact = model.float().encode(x.float())
    assert float((found.float() - exact).norm() / exact.norm()) <= (1e-5 if dtype == torch.float32 else 2e-2)
