"""ATen operations by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

__all__ = ["STRIDED", "resolve", "wherever_it_lies"]

STRIDED = ("as_strided", "as_strided_copy", "as_strided_scatter")
"""Operations that find elements by strides."""


def resolve(target: str) -> Callable[..., Any]:
    """``aten.conv2d.default`` -> the operation itself."""
    found: Any = torch.ops
    for part in target.split("."):
        found = getattr(found, part)
    operation: Callable[..., Any] = found
    return operation


def wherever_it_lies(target: str) -> Callable[..., Any]:
    """The operation. Where it goes by the memory of its operands: as if they lay in the order of their dimensions, as
    they do in the model; ours may have the channels last."""
    if target in ("aten.view.default", "aten._unsafe_view.default"):
        return _reshape
    if target == "aten.view_as.default":
        return _reshape_as
    if target in ("aten.max_pool3d.default", "aten.max_pool3d_with_indices.default"):
        return partial(_of_a_clip, resolve(target))
    return partial(_in_a_row, resolve(target)) if target in _BY_MEMORY else resolve(target)


_BY_MEMORY = {
    *("aten.view.dtype", "aten.view_as_complex.default"),
    *(f"aten.{name}.default" for name in STRIDED),
    *("aten.kron.default", "aten.take_along_dim.default", "aten.native_group_norm.default"),
}


def _reshape(x: Tensor, shape: Sequence[int]) -> Tensor:
    return x.reshape(shape)


def _reshape_as(x: Tensor, other: Tensor) -> Tensor:
    return x.reshape(other.shape)


def _laid(x: Tensor) -> Tensor:
    """The value in memory of its own, in the order of its dimensions."""
    there = x.storage_offset() == 0 and x.stride() == torch.empty(x.shape, device="meta").stride()
    return x if there else x.clone(memory_format=torch.contiguous_format)


def _of_a_clip(operation: Callable[..., Any], x: Tensor, *args: Any, **kwargs: Any) -> Any:
    """PyTorch refuses a single clip, of four dimensions, that lies as a picture with channels last."""
    return operation(_laid(x) if x.ndim == 4 else x, *args, **kwargs)


def _in_a_row(operation: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    laid = [_laid(a) if isinstance(a, Tensor) else a for a in args]
    return operation(*laid, **{k: _laid(a) if isinstance(a, Tensor) else a for k, a in kwargs.items()})
