"""ATen operations by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

__all__ = ["resolve", "wherever_it_lies"]


def resolve(target: str) -> Callable[..., Any]:
    """``aten.conv2d.default`` -> the operation itself."""
    found: Any = torch.ops
    for part in target.split("."):
        found = getattr(found, part)
    operation: Callable[..., Any] = found
    return operation


def wherever_it_lies(target: str) -> Callable[..., Any]:
    """The operation. Where it goes by the memory of its operand: as if that lay in the order of its dimensions, which
    it does in the model; ours may have the channels last."""
    if target in ("aten.view.default", "aten._unsafe_view.default"):
        return _reshape
    if target == "aten.view_as.default":
        return _reshape_as
    return partial(_in_a_row, resolve(target)) if target in _BY_MEMORY else resolve(target)


_BY_MEMORY = {f"aten.{name}" for name in ("view.dtype", "view_as_complex.default", "as_strided.default")}


def _reshape(x: Tensor, shape: Sequence[int]) -> Tensor:
    return x.reshape(shape)


def _reshape_as(x: Tensor, other: Tensor) -> Tensor:
    return x.reshape(other.shape)


def _in_a_row(operation: Callable[..., Any], x: Tensor, *args: Any, **kwargs: Any) -> Any:
    there = x.storage_offset() == 0 and x.stride() == torch.empty(x.shape, device="meta").stride()
    return operation(x if there else x.clone(memory_format=torch.contiguous_format), *args, **kwargs)
