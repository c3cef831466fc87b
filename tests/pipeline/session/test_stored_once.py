"""What a run stores is computed where it is kept: it is not copied there."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from tiny_vaes import TINY, relative_l2, result, waves

from tvae.pipeline import TiledVAE
from tvae.pipeline.engine.ir.program import Op
from tvae.pipeline.engine.run import run_strip

WAN = TINY["AutoencoderKLWan"]
FRAMES = {"decode": 5, "encode": 17}


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Elements copied into buffers, by operation; of a convolution only where its whole result is the whole buffer."""
    found: Counter[str] = Counter()
    keep, place, now = run_strip.StripRun._keep, run_strip.place, list[tuple[Op, int]]()

    def keeping(self: Any, op: Op, value: torch.Tensor, *more: Any) -> None:
        now.append((op, value.numel()))
        keep(self, op, value, *more)

    def placing(buffer: Any, axis: Any, lo: int, hi: int, rows: torch.Tensor) -> None:
        op, size = now[-1]
        if not op.work or size == buffer.numel():
            found[op.name] += rows.numel()
        place(buffer, axis, lo, hi, rows)

    monkeypatch.setattr(run_strip.StripRun, "_keep", keeping)
    monkeypatch.setattr(run_strip, "place", placing)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("side", ["decode", "encode"])
def test_two_devices(side: str, copied: Counter[str]) -> None:
    like = WAN.input(side, 16, 8)
    x = waves((*like.shape[:2], FRAMES[side], *like.shape[3:]), 1)
    vae = TiledVAE(WAN.build(), devices=["cpu", "cpu"])
    got = result(getattr(vae, side)(x))
    with torch.no_grad():
        want = result(getattr(WAN.build().double(), side)(x.double()))
    assert relative_l2(got, want) <= 1e-5
    stored = {"rms_norm_act", "clone", "cat", "conv2d", "conv3d", "residual"}
    assert not stored & copied.keys(), copied
