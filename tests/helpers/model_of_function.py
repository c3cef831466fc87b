"""A model that computes what a function of it and its input says, around one convolution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["ModelOfFunction"]


class ModelOfFunction(nn.Module):
    """of: gives the result of a side, of the model and the input."""

    def __init__(self, of: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.of, self.conv = of, nn.Conv2d(3, 3, 3, padding=1)
