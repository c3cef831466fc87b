"""Activations as definitions take them."""

from __future__ import annotations

from torch import Tensor

from tvae.kernels import functional

__all__ = ["activate"]


def activate(y: Tensor, act: str | None) -> Tensor:
    """In place. ValueError for an activation that there is not."""
    if act not in (None, "silu"):
        raise ValueError(f"the activations are None and 'silu', not '{act}'")
    return y if act is None else functional.silu_(y)
