"""What a job makes of an entry: how its image is framed, and what its record says."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from tvae.pipeline.caches import Framing, Subject
from tvae.pipeline.caches.concepts.chance import chosen, flips, jittered
from tvae.pipeline.caches.concepts.entries import Entry
from tvae.pipeline.caches.concepts.settings import Settings, resolutions
from tvae.pipeline.caches.record import PLACE, CacheRecord
from tvae.pipeline.caches.smooth import smooth_pixels
from tvae.pipeline.caches.spec import Wish
from tvae.pipeline.errors import InputError, UsageError
from tvae.pipeline.jobs.outputs import Item
from tvae.pipeline.jobs.scaling_room import room_to_scale

if TYPE_CHECKING:
    from tvae.pipeline.jobs.cache_plan import CachePlan
    from tvae.pipeline.media.spec import MediaInfo

__all__ = ["EntryFacts", "crop_of", "entry_of", "facts_of"]


def entry_of(item: Item) -> Entry:
    """The item's, which it has where concepts are cached."""
    assert item.entry is not None, "an item of a cache of concepts has an entry"
    return item.entry


def facts_of(plan: CachePlan, items: Iterable[Item]) -> EntryFacts:
    """Raises UsageError for what is wrong with the settings of any entry."""
    assert plan.settings is not None, "concepts come with settings"
    facts = EntryFacts(plan, plan.settings)
    for wanted in {(entry_of(item).concept.resolution, entry_of(item).concept.path): item for item in items}.values():
        facts.wish_of(entry_of(wanted))
    return facts


@dataclass(frozen=True)
class EntryFacts:
    """Raises UsageError, when it is made, for settings that the trainer cannot have together."""

    plan: CachePlan
    settings: Settings

    def __post_init__(self) -> None:
        if not self.wish.buckets.on and self.plan.architecture.timed:
            raise UsageError(
                f"OneTrainer does not read pictures for {self.plan.architecture.name} without aspect ratio bucketing; "
                "switch it on"
            )

    @property
    def wish(self) -> Wish:
        """Of all entries, but for their resolution."""
        wish = self.plan.wish
        on = wish.buckets.on if self.settings.buckets is None else self.settings.buckets
        return replace(wish, buckets=replace(wish.buckets, on=on))

    @property
    def dtype(self) -> torch.dtype:
        """That the trainer reads images in."""
        return self.plan.model.dtype if self.settings.dtype is None else getattr(torch, self.settings.dtype)

    def wish_of(self, entry: Entry) -> Wish:
        """With the resolution that the trainer takes for it. UsageError for one that is none."""
        given = entry.concept.resolution or self.settings.resolution
        where = "--config" if entry.concept.resolution is None else f"the concept '{entry.concept.path}'"
        sides = (self.wish.resolution[0],) if given is None else resolutions(given, where)
        one = chosen(sides, entry, timed=self.plan.architecture.timed)
        size = (one, one) if isinstance(one, int) else one
        if not isinstance(one, int) and not self.wish.buckets.on:
            raise UsageError(f"{where}: {given} needs aspect ratio bucketing, which is off")
        return replace(self.wish, resolution=size)

    def options(self, entry: Entry) -> dict[str, Any]:
        """All that changes the entry's latents, but for the VAE and the image."""
        wish, one = self.wish_of(entry), self.plan.architecture
        return {
            "size": list(wish.resolution),
            "buckets": [wish.buckets.on, wish.step],
            "flip": flips(entry, timed=one.timed),
            "crop": [entry.variation, entry.index] if entry.concept.jitter else None,
            "read": str(self.dtype).removeprefix("torch."),
            **{name: self.plan.options[name] for name in ("posterior", "seed", "computed")},
            "stored": one.dtype,
        }

    def subject(self, item: Item, info: MediaInfo) -> Subject:
        """Raises InputError for an image that the trainer does not read as tvae does, or has no bucket for."""
        entry, one = entry_of(item), self.plan.architecture
        if info.bits > 8:
            raise InputError(f"it has {info.bits} bits, which OneTrainer does not read; save it with 8")
        if info.container == "webp" and (info.rotation or info.mirrored):
            raise InputError("it is to be turned, and OneTrainer does not turn WebP; save it upright")
        framing = self._framing(info, self.wish_of(entry))
        assert item.below is not None, "an item of a cache has a place"
        return Subject(item.below, (info.width, info.height), jittered(framing, entry, timed=one.timed), one)

    def _framing(self, info: MediaInfo, wish: Wish) -> Framing:
        try:
            framing = self.plan.trainer.frame((info.width, info.height), wish)
        except ValueError as error:
            raise InputError(f"no bucket of {self.plan.trainer.name} takes it: {error}") from None
        factor = self.plan.model.info.spatial_factor
        if framing.size[0] % factor or framing.size[1] % factor:
            raise InputError(f"{framing.size[0]}x{framing.size[1]} is no multiple of {factor}, which this VAE needs")
        return framing

    def pixels(self, rgb: np.ndarray, subject: Subject, entry: Entry) -> Tensor:
        """float32 [h, w, 3] of what the encoder sees. InputError for want of memory."""
        flipped = flips(entry, timed=self.plan.architecture.timed)
        size, framing = (rgb.shape[1], rgb.shape[0]), subject.framing
        with room_to_scale(Path(entry.path), size, framing.resized, framing.filter, self.plan.job):
            return smooth_pixels(rgb, framing, self.dtype, flipped=flipped)

    def found(self, subject: Subject, entry: Entry) -> dict[str, Any]:
        """What the record of an entry keeps for the file beside all entries; see ``crop_of``."""
        width, height = subject.framing.size
        crop = [1, height, width] if subject.architecture.timed else [height, width]
        return {_CROP: crop, PLACE: entry.below}


_CROP = "crop"


def crop_of(record: CacheRecord) -> list[int] | None:
    """Height and width of what was cut out of an image, after a 1 where the VAE is one of videos. None: the record does
    not tell."""
    crop = record.found.get(_CROP)
    known = isinstance(crop, list) and len(crop) in (2, 3) and all(type(one) is int for one in crop)
    return crop if known else None
