"""What trainers' rules for buckets have in common."""

from __future__ import annotations

from collections.abc import Sequence

from tvae.pipeline.caches.spec import Framing, Size

__all__ = ["covering", "floored", "nearest"]


def floored(number: int, step: int) -> int:
    """The largest multiple of ``step`` that is not above ``number``."""
    return number - number % step


def nearest(sizes: Sequence[Size], size: Size) -> Size:
    """The first of those whose ratio of width to height differs least."""
    ratio = size[0] / size[1]
    return min(sizes, key=lambda one: abs(one[0] / one[1] - ratio))


def covering(size: Size, bucket: Size) -> Framing:
    """Scale an image until it just covers its bucket, then cut what sticks out, on both sides alike.

    Smaller by area, larger by Lanczos. Sides are rounded half up.
    """
    scale = max(bucket[0] / size[0], bucket[1] / size[1])
    resized = int(size[0] * scale + 0.5), int(size[1] * scale + 0.5)
    left, top = (resized[0] - bucket[0]) // 2, (resized[1] - bucket[1]) // 2
    return Framing(resized, (left, top, *bucket), "lanczos" if scale > 1 else "area")
