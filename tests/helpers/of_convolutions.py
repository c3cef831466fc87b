"""A model that attends to what convolutions give, as Cosmos does."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["OfConvolutions"]


class OfConvolutions(nn.Module):
    """Attention whose operands come from convolutions, in so many heads; causal: of a mask."""

    def __init__(self, heads: int, width: int, *, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.operands = nn.ModuleList(nn.Conv2d(3, heads * width, 3, padding=1) for _ in range(3))
        self.out = nn.Conv2d(heads * width, 3, 1)

    def encode(self, x: Tensor) -> Tensor:
        q, k, v = (conv(x).flatten(2).unflatten(1, (self.heads, -1)).transpose(2, 3) for conv in self.operands)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(y.transpose(2, 3).flatten(1, 2).unflatten(2, x.shape[2:]))

    def decode(self, z: Tensor) -> Tensor:
        return z
