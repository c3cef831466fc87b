"""Whether two VAEs are one, by the checksums of ``values_checksum``. Needs no PyTorch, as readers of latents do not."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["same_values"]


def same_values(one: Sequence[str], other: Sequence[str]) -> bool:
    """Is one of these VAEs the other, or a copy of it in a narrower type? Not of such that have no checksums."""
    if not one or not other:
        return False
    pairs = [*zip(one[1:], other[1:], strict=False)]
    return one[0] == other[0] or any(a[:32] == b[:32] and a + b != a[:32] + b[:32] for a, b in pairs)
