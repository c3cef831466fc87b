"""Inputs of cells: noise on a slow wave and a ramp, so that statistics differ from strip to strip."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sweeping.cells import Cell
from sweeping.families import Swept

__all__ = ["input_of", "latents_of", "options_of"]


def latents_of(cell: Cell, of: Swept) -> tuple[int, ...]:
    """Samples, frames, height and width of its latents; without frames where they are the batch."""
    geometry = of.geometry
    space = (cell.height // geometry.spatial, cell.width // geometry.spatial)
    if cell.frames is None:
        return cell.batch, *space
    if of.in_batch:
        return cell.frames, *space
    return cell.batch, geometry.lead + (cell.frames - geometry.lead) // (geometry.temporal or 1), *space


def options_of(cell: Cell, of: Swept) -> dict[str, Any]:
    """Extra arguments of the side."""
    return {"num_frames": cell.frames} if of.in_batch and cell.side == "decode" else {}


def input_of(cell: Cell, of: Swept, model: nn.Module, device: torch.device) -> Tensor:
    """In the cell's type, on the device. What a codebook decodes is entries of it, as it would be."""
    geometry, generator = of.geometry, torch.Generator(device).manual_seed(cell.seed * 100_003 + cell.index)
    batch, *rest = latents_of(cell, of)
    if cell.side == "encode":
        frames = [cell.frames] if len(rest) == 3 else []
        shape: tuple[Any, ...] = (batch, geometry.in_channels, *frames, cell.height, cell.width)
    else:
        shape = (batch, geometry.latent_channels, *rest)
    dtype = getattr(torch, cell.dtype)
    codes = getattr(getattr(model, "quantize", None), "embedding", None)
    if cell.side == "decode" and codes is not None:
        book = codes.weight
        chosen = torch.randint(len(book), (batch, *rest), generator=generator, device=device)
        return book[chosen].movedim(-1, 1).contiguous().to(dtype)
    noise = torch.randn(shape, generator=generator, device=device)
    down = torch.linspace(0, 4, shape[-2], device=device)[:, None]
    across = torch.linspace(-1, 1, shape[-1], device=device)[None]
    slow = 2 * torch.sin(down) + across * (down / 2)
    size, wave = (0.5, 1.0) if cell.side == "decode" else (0.1, 0.3)  # pixels stay near [-1, 1]
    return noise.mul_(size).add_(slow, alpha=wave).to(dtype)
