"""Shards as trainers: whatever VAE there is, in raw or model space, in buckets of one area.

Nobody's code says what the latents in a shard are, so all of it stands in each sample's facts. Buckets: every side a
multiple of 64 pixels, from half to twice the side of a square of that area (or as ``--buckets`` says), the other one as
long as the area allows. Images are scaled to cover the bucket of the nearest proportions, and cut in the middle.
"""

from __future__ import annotations

from functools import partial
from math import isqrt
from pathlib import PurePosixPath

from tvae.pipeline.caches.buckets import covering, floored, nearest
from tvae.pipeline.caches.shards.form import ShardForm
from tvae.pipeline.caches.shards.mds import MDS
from tvae.pipeline.caches.shards.tar import WEBDATASET
from tvae.pipeline.caches.spec import Architecture, Framing, Size, Subject, Trainer, Wish

__all__ = ["CONTAINERS"]


def _sizes(wish: Wish) -> list[Size]:
    """In order of width."""
    step, area = wish.step, wish.resolution[0] * wish.resolution[1]
    smallest = -(-(wish.buckets.smallest or isqrt(area) // 2) // step) * step
    largest = floored(wish.buckets.largest or 2 * isqrt(area), step)
    sides = range(smallest, largest + 1, step)
    wide = {(width, min(largest, floored(area // width, step))) for width in sides}
    found = {size for size in wide if min(size) >= smallest}
    return sorted(found | {(height, width) for width, height in found})


def _frame(size: Size, wish: Wish) -> Framing:
    if not wish.buckets.on:
        return covering(size, wish.resolution)
    sizes = _sizes(wish)
    if not sizes:
        raise ValueError(f"an area of {wish.resolution[0]}x{wish.resolution[1]} has no bucket of these sides")
    return covering(size, nearest(sizes, size))


def _container(form: ShardForm, code: str) -> Trainer:
    any_vae = partial(Architecture, classes=None, channels=None, factor=None, dtype=None, clips=True)
    return Trainer(
        name=form.name,
        code=code,
        architectures=(
            any_vae("raw", space="raw", posterior="sample", resolution=(1024, 1024)),
            any_vae("model", space="model", posterior="sample", resolution=(1024, 1024)),
        ),
        frame=_frame,
        files=_no_files,
        contents=lambda subject, latents: [],
        is_entry=lambda place: False,
        upright=("image", "video"),
        flips=True,
        ranges=True,
        enlarges=True,
        form=form,
    )


def _no_files(subject: Subject) -> list[PurePosixPath]:
    """Samples have no files of their own."""
    return []


CONTAINERS: dict[str, Trainer] = {
    "webdataset": _container(WEBDATASET, "webdataset 1.0.2"),
    "mds": _container(MDS, "mosaicml-streaming 0.13.0"),
}
