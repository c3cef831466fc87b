"""What OneTrainer leaves to chance is known before it runs: its random numbers come from known seeds.

Each of mgds's modules draws from ``Random(hash((seed, module, variation, image)))``, where the seed is mgds's own, the
module its place in OneTrainer's chain, and the image its place among all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import TypeVar

from tvae.pipeline.caches.concepts.entries import Entry
from tvae.pipeline.caches.spec import Framing

__all__ = ["chosen", "flips", "jittered"]

T = TypeVar("T")

_SEED = 42
_BUCKETS, _CROP, _FLIP = 13, 14, 15
"""Places of modules, without masks and conditioning images."""
_MORE = 2
"""Modules that come before these where the VAE is one of videos."""


def _random(module: int, entry: Entry, timed: bool) -> Random:
    return Random(hash((_SEED, module + _MORE * timed, entry.variation, entry.index)))


def chosen(among: Sequence[T], entry: Entry, *, timed: bool) -> T:
    """The resolution of an entry. timed: is the VAE one of videos?"""
    return _random(_BUCKETS, entry, timed).choice(among)


def flips(entry: Entry, *, timed: bool) -> bool:
    """Is the image mirrored left-right?"""
    if entry.concept.flip == "chance":
        return _random(_FLIP, entry, timed).random() < 0.5
    return entry.concept.flip == "always"


def jittered(framing: Framing, entry: Entry, *, timed: bool) -> Framing:
    """The framing with its crop where the trainer cuts it."""
    if not entry.concept.jitter:
        return framing
    random, (_, _, width, height) = _random(_CROP, entry, timed), framing.crop
    top = random.randint(0, framing.resized[1] - height)
    left = random.randint(0, framing.resized[0] - width)
    return replace(framing, crop=(left, top, width, height))
