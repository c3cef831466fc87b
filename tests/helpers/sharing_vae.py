"""A small model that no family knows, for devices that share its calls, which are threads on this CPU."""

from __future__ import annotations

import copy
from typing import Any

import torch
from tiny_vaes import relative_l2, result
from torch import nn

from tvae.pipeline import TiledVAE
from tvae.pipeline.models.reference import call_reference, reference_mode

__all__ = ["HEIGHT", "WIDTH", "SharingVAE", "Z", "agrees", "sees", "tiled"]

HEIGHT, WIDTH = 11, 5
"""Rows that two and three devices have unevenly."""
Z = torch.randn(1, 3, HEIGHT, WIDTH, generator=torch.Generator().manual_seed(1))


def tiled(model: Any, devices: int = 2, **more: Any) -> Any:
    """The model on so many of them, in strips of two latent rows."""
    return TiledVAE(model, devices=["cpu"] * devices, **{"strip": 2, **more})


def agrees(vae: Any, model: Any, side: str, x: torch.Tensor, **extra: Any) -> None:
    """With the model as it is now, computed whole in float64."""
    wide = copy.deepcopy(model).double()
    with torch.no_grad(), reference_mode(wide):
        _agree(vae, side, x, result(call_reference(wide, side, x.double(), **extra)), extra)  # type: ignore[arg-type]


def sees(vae: Any, model: Any, side: str, x: torch.Tensor) -> None:
    """With the model as it is now, computed whole in its own type: not every changed model can be copied."""
    with torch.no_grad(), reference_mode(model):
        want = result(call_reference(model, side, x))  # type: ignore[arg-type]
    _agree(vae, side, x, want, {})


def _agree(vae: Any, side: str, x: torch.Tensor, want: torch.Tensor, extra: dict[str, Any]) -> None:
    got = result(getattr(vae, side)(x, **extra))
    assert got.shape == want.shape
    assert relative_l2(got, want) <= 1e-5


class SharingVAE(nn.Module):
    """Convolutions, a norm over all rows, attention, twice as many rows on one side."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8)
        self.last, self.mix = nn.Conv2d(8, 3, 3, padding=1), nn.Linear(8, 8)

    def decode(self, z: torch.Tensor) -> torch.Tensor:
        h = self.norm(self.first(z))
        t = self.mix(h.flatten(2).transpose(1, 2))
        a = nn.functional.scaled_dot_product_attention(t, t, t).transpose(1, 2).reshape(h.shape)
        return self.last(nn.functional.interpolate(h + a, scale_factor=2.0, mode="nearest"))

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(nn.functional.conv2d(x, self.first.weight, stride=2, padding=1)))
