"""Law 1 with strips of frames and bands of rows inside them, on the families that have them."""

from __future__ import annotations

import copy

import pytest
import torch
from tiny_vaes import TINY, relative_l2, result

from tvae.pipeline import TiledVAE
from tvae.pipeline.models.reference import call_reference, reference_mode
from tvae.pipeline.session import choose_plan as planning
from tvae.pipeline.session.prepared import Compiled

TOLERANCE = 1e-5
CASES = [
    ("AutoencoderKLHunyuanVideo", "decode", (1, 4, 3, 16, 4)),
    pytest.param("AutoencoderKLHunyuanVideo", "encode", (1, 3, 9, 256, 32), marks=pytest.mark.slow),
    pytest.param("AutoencoderKLHunyuanVideo15", "decode", (1, 4, 3, 16, 8), marks=pytest.mark.slow),
    pytest.param("AutoencoderKLHunyuanVideo15", "encode", (1, 3, 9, 256, 64), marks=pytest.mark.slow),
    pytest.param("AutoencoderKLLTXVideo", "decode", (1, 8, 3, 12, 8), marks=pytest.mark.slow),
    pytest.param("AutoencoderKLLTXVideo", "encode", (1, 3, 9, 384, 128), marks=pytest.mark.slow),
    pytest.param("AutoencoderKLLTX2Video", "decode", (1, 8, 3, 12, 8), marks=pytest.mark.slow),
    pytest.param("AutoencoderKLAllegro", "encode", (1, 3, 8, 192, 64), marks=pytest.mark.slow),
]
"""Not where every frame has norms of its own (Cosmos, SVD, Allegro decoding): no row of it is done before all are."""


@pytest.mark.long
@pytest.mark.parametrize(("family", "side", "shape"), CASES)
def test_bands_inside_strips_of_frames(
    family: str, side: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the smallest budget that strips of time can do with."""
    tiny = TINY[family]
    channels = (tiny.latent if side == "decode" else tiny.pixel)[0]
    model, x = tiny.build(), torch.randn(shape[0], channels, *shape[2:], generator=torch.Generator().manual_seed(5))
    monkeypatch.setattr(Compiled, "_choices", lambda *_: ["time"])
    monkeypatch.setattr(planning, "activation_budget", lambda *_: None)
    free = TiledVAE(model, strip=1, rows="time").plan(tuple(x.shape), side)  # type: ignore[arg-type]
    assert free.least_bytes < free.peak_bytes
    monkeypatch.setattr(planning, "activation_budget", lambda *_: free.least_bytes)
    tiled = TiledVAE(model, strip=1, rows="time")
    plan = tiled.plan(tuple(x.shape), side)  # type: ignore[arg-type]
    assert plan.peak_bytes <= free.least_bytes
    assert max(segment.bands for segment in plan.segments) > 1
    assert min(segment.strips for segment in plan.segments) > 1
    with torch.no_grad(), reference_mode(model):
        reference = result(call_reference(copy.deepcopy(model).double(), side, x.double()))  # type: ignore[arg-type]
    assert relative_l2(result(getattr(tiled, side)(x)), reference) <= TOLERANCE
