"""WebDataset shards as a trainer: any VAE, in raw or model space, in buckets of one area.

No trainer says what the latents in a shard are, so each sample's facts say all of it. Buckets: every side a multiple of
64 pixels, from half to twice the side of a square of that area (or as ``--buckets`` says), the other one as long as the
area allows. Images are scaled to cover the bucket of the nearest proportions, and cut in the middle.
"""

from __future__ import annotations

from functools import partial
from math import isqrt

from tvae.pipeline.caches.spec import (
    WEBDATASET,
    Architecture,
    BucketSettings,
    Framing,
    Size,
    Trainer,
    covering,
    floored,
    nearest,
)

__all__ = ["TRAINER"]


def _sizes(settings: BucketSettings) -> list[Size]:
    """Return all buckets in order of width."""
    step, area = settings.step, settings.resolution[0] * settings.resolution[1]
    smallest = -(-(settings.buckets.smallest or isqrt(area) // 2) // step) * step
    largest = floored(settings.buckets.largest or 2 * isqrt(area), step)
    sides = range(smallest, largest + 1, step)
    wide = {(width, min(largest, floored(area // width, step))) for width in sides}
    sizes = {size for size in wide if min(size) >= smallest}
    return sorted(sizes | {(height, width) for width, height in sizes})


def _frame(size: Size, settings: BucketSettings) -> Framing:
    if not settings.buckets.on:
        return covering(size, settings.resolution)
    sizes = _sizes(settings)
    if not sizes:
        raise ValueError(f"an area of {settings.resolution[0]}x{settings.resolution[1]} has no bucket of these sides")
    return covering(size, nearest(sizes, size))


_any_vae = partial(
    Architecture, classes=None, channels=None, factor=None, posterior="sample", resolution=(1024, 1024), clips=True
)

TRAINER = Trainer(
    name=WEBDATASET,
    code="webdataset 1.0.2",
    architectures=(_any_vae("raw", space="raw"), _any_vae("model", space="model")),
    frame=_frame,
    files=lambda subject: [],
    contents=lambda subject, latents: [],
    is_entry=lambda place: False,
    upright=("image", "video"),
    flips=True,
    ranges=True,
    enlarges=True,
    shards=True,
)
