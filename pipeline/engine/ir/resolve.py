"""ATen operations by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["resolve"]


def resolve(target: str) -> Callable[..., Any]:
    """``aten.conv2d.default`` -> the operation itself."""
    found: Any = torch.ops
    for part in target.split("."):
        found = getattr(found, part)
    operation: Callable[..., Any] = found
    return operation
