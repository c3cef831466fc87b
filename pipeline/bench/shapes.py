"""VAEs in the shape of public ones with random weights: a benchmark needs no download, only the same work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tvae.pipeline.models.families import FAMILIES
from tvae.pipeline.models.own_classes import class_named

__all__ = ["SHAPES", "Shape", "build"]


@dataclass(frozen=True)
class Shape:
    """A class, diffusers' or ours, and the configuration of a public checkpoint; what is not named is its default."""

    class_name: str
    config: dict[str, Any]
    note: str


SHAPES = {
    name: Shape(family.class_name, one.config, one.note)
    for family in FAMILIES.values()
    for name, one in family.checkpoints.items()
}
"""By the name that ``--config`` takes."""


def build(shape: Shape, seed: int = 0) -> nn.Module:
    """The model in float32 on the CPU, for inference. Norms are random too, or leaving them out would not show."""
    random = torch.random.get_rng_state()
    torch.manual_seed(seed)
    model: nn.Module = _class_of(shape)(**shape.config)
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 1 or "norm" in name.lower():
                noise = torch.randn(weight.shape, generator=generator)
                weight.copy_(0.3 * noise if name.endswith("bias") else 1 + 0.4 * noise)
    torch.random.set_rng_state(random)
    return model.eval().requires_grad_(False)


def _class_of(shape: Shape) -> type[nn.Module]:
    found = class_named(shape.class_name)
    assert found is not None, f"diffusers has no {shape.class_name}"
    return found
