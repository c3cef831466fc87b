"""Interpolation under ``torch.autocast`` on a GPU, which PyTorch computes in float32 from release 2.11 on. The exporter
takes it apart before that is decided, and would note the type of what is interpolated."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["interpolated_as"]

_OPERATIONS = {
    "nearest": "upsample_nearest{}d",
    "nearest-exact": "_upsample_nearest_exact{}d",
    "linear": "upsample_linear{}d",
    "bilinear": "upsample_bilinear{}d",
    "bicubic": "upsample_bicubic{}d",
    "trilinear": "upsample_trilinear{}d",
}
"""By the mode of ``F.interpolate``: the operation, for so many dimensions."""


def interpolated_as(x: Tensor, mode: str = "nearest", *, antialias: bool = False) -> torch.dtype:
    """The type that ``F.interpolate`` computes in, of a tensor of this type, here and now."""
    lower = x.dtype in (torch.float16, torch.bfloat16)
    if not lower or x.device.type != "cuda" or not torch.is_autocast_enabled("cuda"):
        return x.dtype
    name = _OPERATIONS.get(mode, "").format(x.ndim - 2)
    return torch.float32 if name and _is_cast(f"_{name}_aa" if antialias else name) else x.dtype


def _is_cast(name: str) -> bool:
    """Does this release do anything about it? There is nothing else that it might do than to cast to float32."""
    known: Any = vars(torch._C)["_dispatch_has_kernel_for_dispatch_key"]
    return bool(known(f"aten::{name}", "AutocastCUDA"))
