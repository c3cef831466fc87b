"""Law 1 with strips of frames: in float32 within 1e-5 of the reference in float64, clips of five lengths."""

from __future__ import annotations

import copy

import pytest
import torch
from tiny_vaes import TINY, TinyVAE, relative_l2, result
from torch import Tensor, nn

from tvae.pipeline import TiledVAE
from tvae.pipeline.models.reference import call_reference, reference_mode

TOLERANCE = 1e-5
LENGTHS = {
    "AutoencoderKLHunyuanVideo": (1, 5, 9, 13, 17),
    "AutoencoderKLHunyuanVideo15": (1, 5, 9, 13, 17),
    "AutoencoderKLHunyuanImageRefiner": (1, 2, 3, 4, 5),
    "AutoencoderKLLTXVideo": (1, 9, 17, 25, 33),
    "AutoencoderKLLTX2Video": (1, 9, 17, 25, 33),
    "AutoencoderKLCosmos": (1, 5, 9, 13, 17),
    "AutoencoderKLAllegro": (4, 8, 12, 16, 20),
    "AutoencoderKLTemporalDecoder": (1, 2, 3, 4, 5),
}
"""Frames of the clips; their latents have 1 to 5."""


def clip(tiny: TinyVAE, side: str, frames: int, height: int, width: int) -> Tensor:
    """A clip that changes with time, for latents of height x width."""
    channels = (tiny.latent if side == "decode" else tiny.pixel)[0]
    factor = 1 if side == "decode" else tiny.scale
    noise = torch.randn(channels, frames, height * factor, width * factor, generator=torch.Generator().manual_seed(3))
    time = torch.linspace(0, 3, frames).view(1, -1, 1, 1)
    x = 0.5 * noise * (1 + 0.3 * time) + torch.sin(2 * time)
    return x.transpose(0, 1) if tiny.batch > 1 else x.unsqueeze(0)


def reference64(model: nn.Module, side: str, x: Tensor, **extra: object) -> Tensor:
    """The model's own call on the whole input in float64."""
    wide = copy.deepcopy(model).double()
    with torch.no_grad(), reference_mode(wide):
        return result(call_reference(wide, side, x.double(), **extra))  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("side", ["encode", "decode"])
@pytest.mark.parametrize("family", LENGTHS)
def test_strips_of_frames_equal_the_reference(family: str, side: str) -> None:
    """Captured at one size, run at another, in strips of 1, 2 and 3 latent frames."""
    tiny = TINY[family]
    model = tiny.build()
    lengths = LENGTHS[family] if side == "encode" else (1, 2, 3, 4, 5)

    def extra(frames: int) -> dict[str, int]:
        return {"num_frames": frames} if tiny.decode and side == "decode" else {}

    first = clip(tiny, side, lengths[-1], 6, 8)
    getattr(TiledVAE(model, strip=2, rows="time"), side)(first, **extra(lengths[-1]))  # the capture's size
    for frames in lengths:
        x = clip(tiny, side, frames, 5, 4)
        reference = reference64(model, side, x, **extra(frames))
        for strip in (1, 2, 3):
            value = result(getattr(TiledVAE(model, strip=strip, rows="time"), side)(x, **extra(frames)))
            assert value.shape == reference.shape
            assert relative_l2(value, reference) <= TOLERANCE, f"{frames} frames in strips of {strip}"
