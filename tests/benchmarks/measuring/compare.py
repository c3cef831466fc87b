"""Results in files, compared: one process computed each."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

__all__ = ["compared", "kept"]

_PART = 1 << 25


def kept(value: Tensor, path: str | Path) -> None:
    """A result, in the type it has."""
    torch.save(value.cpu().contiguous(), path)


def compared(path: str | Path, reference: str | Path) -> tuple[float, bool]:
    """(relative L2 distance from the reference, whether both are the same bit by bit); in float64, part by part."""
    value, exact = (torch.load(p, mmap=True, weights_only=True) for p in (path, reference))
    if value.shape != exact.shape:
        raise ValueError(f"results of {list(value.shape)} and {list(exact.shape)}")
    gap = norm = 0.0
    same = value.dtype == exact.dtype
    for one, other in zip(value.flatten().split(_PART), exact.flatten().split(_PART), strict=True):
        wide = other.double()
        apart = one.double() - wide
        gap += float(apart.square().sum())
        norm += float(wide.square().sum())
        same = same and not bool(apart.any())
    return (gap / norm) ** 0.5, same
