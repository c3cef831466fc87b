"""Messages between ranks, drawn by chance."""

from __future__ import annotations

import random

import torch
from torch import Tensor

__all__ = ["Drawn", "drawn", "sent"]

Drawn = tuple[int, int, int, torch.dtype]
"""From, to, number of elements, type."""
_DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.uint8)


def drawn(seed: int, ranks: int, most: int) -> list[Drawn]:
    """Up to eight messages of at most so many elements, often several between two ranks. The last rank may get
    nothing, and another have nothing to say."""
    draw = random.Random(seed)
    others = [(a, b) for a in range(ranks) for b in range(ranks) if a != b and (ranks == 2 or b - a != ranks - 1)]
    chosen = [(0, 1), (ranks - 1, 0), *draw.choices(others, k=draw.randint(0, 6))]
    draw.shuffle(chosen)
    return [(a, b, draw.randint(1, most), draw.choice(_DTYPES)) for a, b in chosen]


def sent(messages: list[Drawn], rank: int, device: str = "cpu") -> list[tuple[int, Tensor]]:
    """What a rank says, and to whom."""

    def content(n: int, size: int, dtype: torch.dtype) -> Tensor:
        return torch.randint(256, (size,), generator=torch.Generator().manual_seed(n)).to(device, dtype)

    return [(b, content(n, size, dtype)) for n, (a, b, size, dtype) in enumerate(messages) if a == rank]
