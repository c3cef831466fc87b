"""Attention over time in more pixels than a CUDA grid has places, beside the model itself in float64 on the CPU."""

from __future__ import annotations

import copy

import pytest
import torch
from over_time import OverTime

from tvae.pipeline import TiledVAE
from tvae.pipeline.errors import PlanError

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]


@pytest.mark.parametrize("in_rows", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@torch.no_grad()
def test_more_pixels_than_a_grid_has_places(dtype: torch.dtype, in_rows: bool) -> None:
    torch.manual_seed(5)
    model = OverTime(in_rows).cuda().to(dtype).eval()
    x = torch.randn(1, 3, 3, 300, 520, device="cuda").to(dtype)  # 156,000 pixels
    exact = copy.deepcopy(model).cpu().double().encode(x.cpu().double())

    def error(y: torch.Tensor) -> float:
        return float((y.cpu().double() - exact).norm() / exact.norm())

    own = error(torch.cat([model.encode(part) for part in x.split(100, 3)], 3))  # 52,000 at a time
    most = 1e-6 if dtype == torch.float32 else 1.02 * own
    tiled = TiledVAE(model)
    assert [error(tiled.encode(x)) <= most for _ in range(5)] == [True] * 5
    with pytest.raises(PlanError) as refused:
        TiledVAE(model, vram="1MiB").encode(x)
    assert refused.value.enough is not None
    assert error(TiledVAE(model, vram=refused.value.enough + (100 << 20)).encode(x)) <= most
