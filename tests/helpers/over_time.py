"""A model that attends over time alone, as many video VAEs do in places."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["OverTime"]


class OverTime(nn.Module):
    """Each pixel attends to its own frames. in_rows: do a frame's features lie together in memory?"""

    def __init__(self, in_rows: bool) -> None:
        super().__init__()
        self.into, self.out, self.in_rows = nn.Conv3d(3, 48, 1), nn.Conv3d(16, 4, 1), in_rows

    def encode(self, x: Tensor) -> Tensor:
        n, _, t, h, w = x.shape
        y = self.into(x).permute(0, 3, 4, 2, 1).reshape(n * h * w, 1, t, 48)
        q, k, v = (y.contiguous() if self.in_rows else y).chunk(3, -1)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.reshape(n, h, w, t, 16).permute(0, 4, 3, 1, 2))

    def decode(self, z: Tensor) -> Tensor:
        return z
