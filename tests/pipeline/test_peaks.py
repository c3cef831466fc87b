"""Without a budget every family takes less memory than its own untiled call, counted in the same way."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from live_bytes import LiveBytes
from tiny_vaes import TINY

from tvae.pipeline import TiledVAE
from tvae.pipeline.models.reference import call_reference, reference_mode

HEIGHT, WIDTH = 256, 192
"""Pixels: activations are far larger than weights."""


@pytest.mark.slow
@pytest.mark.parametrize("side", ["decode", "encode"])
@pytest.mark.parametrize("family", TINY)
def test_the_peak_is_below_the_untiled_models(family: str, side: Any) -> None:
    """Bytes of all tensors alive at once; weights do not count on either side."""
    tiny = TINY[family]
    model, extra = tiny.build(), tiny.extra(side)
    height, width = HEIGHT // tiny.scale, WIDTH // tiny.scale
    x = tiny.input(side, height, width)
    weights = [*model.parameters(), *model.buffers()]
    tiled = TiledVAE(model, strip=max(1, height // 8))
    getattr(tiled, side)(x, **extra)
    with torch.no_grad(), LiveBytes(weights) as ours:
        getattr(tiled, side)(x, **extra)
    with torch.no_grad(), LiveBytes(weights) as untiled, reference_mode(model):
        call_reference(model, side, x, **extra)
    said = tiled.plan(tuple(x.shape), side, **extra).peak_bytes
    mib = [n / 2**20 for n in (ours.peak, said, untiled.peak)]
    print(f"\n{family} {side}: {mib[0]:.1f} MiB, said {mib[1]:.1f}, untiled {mib[2]:.1f}")
    assert ours.peak < untiled.peak
