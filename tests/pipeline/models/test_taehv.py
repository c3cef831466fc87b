"""TAEHV against itself written over again, frame by frame: lengths, patches, the super decoder, CogVideoX's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from taehv_naive import decoded, encoded
from torch import Tensor

from tvae.pipeline import TiledVAE
from tvae.pipeline.errors import UsageError
from tvae.pipeline.models.taehv import TAECVX, TAEHV

NARROW: dict[str, Any] = {"latent_channels": 5, "encoder_width": 6, "decoder_widths": (12, 8, 6, 4)}
KINDS: dict[str, dict[str, Any]] = {
    "Wan 2.1": {},
    "Wan 2.2": {"patch_size": 2},
    "LTX-2": {"patch_size": 4, "encoder_time": (2, 2, 2), "decoder_time": (2, 2, 2)},
    "super": {"patch_size": 2, "large": True},
}


def built(kind: str, cls: type = TAEHV) -> Any:
    torch.manual_seed(0)
    model = cls(**NARROW, **KINDS[kind]).double()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.5)
        model.decoder[-1].bias.add_(0.5)  # or half of all pixels are clamped
    return model


def clip(frames: int, height: int, width: int) -> Tensor:
    return torch.rand(1, 3, frames, height, width, generator=torch.Generator().manual_seed(frames)).double() * 2 - 1


@pytest.mark.parametrize("frames", [1, 2, 5, 8, 9, 17])
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_encode(kind: str, frames: int) -> None:
    model, patch = built(kind), KINDS[kind].get("patch_size", 1)
    x = clip(frames, 16 * patch, 8 * patch)
    found = model.encode(x).latents
    wanted = encoded(model.state_dict(), (x[0].transpose(0, 1) + 1) / 2, patch).transpose(0, 1)[None]
    assert found.shape == wanted.shape == (1, 5, -(-frames // (8 if kind == "LTX-2" else 4)), 2, 1)
    assert (found - wanted).abs().max() < 1e-12
    assert wanted.std() > 1e-3


def test_strips_of_time_encode_a_clip_that_needs_no_more_frames() -> None:
    model, x = built("Wan 2.1", TAECVX), clip(8, 16, 8)
    found = TiledVAE(model, rows="time").encode(x).latents
    wanted = encoded(model.state_dict(), (x[0].transpose(0, 1) + 1) / 2, 1).transpose(0, 1)[None]
    assert (found - wanted).abs().max() < 1e-12


@pytest.mark.parametrize("latents", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_decode(kind: str, latents: int) -> None:
    """At once, and in steps of one and two latent frames."""
    model, patch = built(kind), KINDS[kind].get("patch_size", 1)
    z = 2 * torch.randn(1, 5, latents, 2, 3, generator=torch.Generator().manual_seed(latents)).double()
    found = model.decode(z).sample
    wanted = decoded(model.state_dict(), z[0].transpose(0, 1), patch).transpose(0, 1)[None] * 2 - 1
    assert found.shape == wanted.shape
    assert (found - wanted).abs().max() < 1e-12
    assert (wanted.abs() < 1).double().mean() > 0.2  # most pixels are not clamped
    for size in (1, 2):
        caches: tuple[Tensor, ...] = ()
        parts = []
        for part in z.split(size, 2):
            pixels, caches = model.decode_step(part, caches)
            parts.append(pixels)
        assert (torch.cat(parts, 2) - found).abs().max() < 1e-12


@pytest.mark.parametrize("latents", [1, 2, 3, 4, 5])
@torch.no_grad()
def test_cogvideox_drops_no_frame_of_an_even_number(latents: int) -> None:
    model = built("Wan 2.1", TAECVX)
    z = torch.randn(1, 5, latents, 2, 3, generator=torch.Generator().manual_seed(latents)).double()
    wanted = decoded(model.state_dict(), z[0].transpose(0, 1), 1, drops=latents % 2 == 1).transpose(0, 1)[None] * 2 - 1
    found = model.decode(z).sample
    assert found.shape == wanted.shape
    assert found.shape[2] == 4 * latents - 3 * (latents % 2)
    assert (found - wanted).abs().max() < 1e-12
    first = latents if latents < 2 else 2 + latents % 2
    pixels, caches = model.decode_step(z[:, :, :first])
    parts = [pixels]
    for part in z[:, :, first:].split(2, 2) if first < latents else ():
        pixels, caches = model.decode_step(part, caches)
        parts.append(pixels)
    assert (torch.cat(parts, 2) - found).abs().max() < 1e-12


def test_a_step_of_another_model_is_refused() -> None:
    with pytest.raises(UsageError, match="takes no caches or 9, not 1"):
        built("Wan 2.1").decode_step(torch.zeros(1, 5, 1, 2, 3).double(), (torch.zeros(1),))
