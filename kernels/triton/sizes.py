"""Sizes of blocks and grids. Triton's own functions for them unwrap their arguments first, in hundreds of launches."""

from __future__ import annotations

__all__ = ["ceil_div", "power_of_2"]


def ceil_div(n: int, size: int) -> int:
    """Blocks of ``size`` that hold ``n``."""
    return -(-n // size)


def power_of_2(n: int) -> int:
    """The least one that is not below n, which is 1 or more."""
    return 1 << (n - 1).bit_length()
