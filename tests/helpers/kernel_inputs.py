"""Inputs of the fused operations: tensors of any type, rank and memory layout, and how far a result may be off."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

TYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
LAYOUTS = ("contiguous", "channels last", "rows of more", "channels last, rows of more", "batch of more")


def rounding(dtype: torch.dtype) -> float:
    """Largest relative error of one rounding to this type."""
    return torch.finfo(dtype).eps / 2


def wide_rounding(dtype: torch.dtype) -> float:
    """The same for the type that is computed in."""
    return rounding(torch.float64 if dtype == torch.float64 else torch.float32)


def normal(shape: tuple[int, ...], seed: int) -> Tensor:
    """Standard normal float64 values."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def laid_out(x: Tensor, layout: str) -> Tensor:
    """The values of x_nc* in one of ``LAYOUTS``; what lies around a part of more is not like them."""
    if "rows of more" in layout:
        big = torch.cat([x + 5, x, x - 5], 2)
        big = channels_last(big) if "channels last" in layout else big.contiguous()
        return big.narrow(2, x.shape[2], x.shape[2])
    if layout == "batch of more":
        return torch.stack([x, x + 1], 1)[:, 0]
    return channels_last(x) if layout == "channels last" else x.contiguous()


def channels_last(x: Tensor) -> Tensor:
    """x_nc* with its channels innermost, for any rank."""
    return x.movedim(1, -1).contiguous().movedim(-1, 1)


@st.composite
def images(draw: Any, types: tuple[torch.dtype, ...] = TYPES, rank: int | None = None, far: bool = True) -> Tensor:
    """x_nc* of standard deviation 1 about a mean that may be many times that (``far``)."""
    n, groups, per_group = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    spatial = draw(st.lists(st.integers(1, 6), min_size=rank or 1, max_size=rank or 3))
    dtype = draw(st.sampled_from(types))
    mean = draw(st.sampled_from([0.0, 10.0, 1e3])) if far else 0.0
    if dtype in (torch.bfloat16, torch.float16):
        mean = min(mean, 10.0)  # at 1e3 these types hold no deviations of 1
    x = normal((n, groups * per_group, *spatial), draw(st.integers(0, 1000))) + mean
    return laid_out(x.to(dtype), draw(st.sampled_from(LAYOUTS)))


def groups_of(x: Tensor, draw: Any) -> int:
    """Some number of groups its channels can have."""
    return int(draw(st.sampled_from([g for g in range(1, x.shape[1] + 1) if x.shape[1] % g == 0])))


def per_channel(t: Tensor, like: Tensor) -> Tensor:
    """[C] or [N, C] so that it broadcasts with x_nc*."""
    return t.reshape(*(t.shape if t.ndim == 2 else (1, -1)), *[1] * (like.ndim - 2))


def silu(x: Tensor) -> Tensor:
    """Of float64 values, by its formula."""
    return x / (1 + torch.exp(-x))
