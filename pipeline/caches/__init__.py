"""Caches of latents that trainers read in the place of images and clips: what each trainer's files are called and hold.

Every trainer is one file in ``trainers/``, which is found by being there. Beside the trainer's files tvae keeps
records (``record``) that say what they were made of, so that stale ones are found.
"""

from __future__ import annotations

from tvae.pipeline.caches.request import Buckets, CacheRequest
from tvae.pipeline.caches.spec import Architecture, Framing, Subject, Trainer
from tvae.pipeline.caches.trainers import TRAINERS, architecture_of, trainer_named

__all__ = [
    "TRAINERS",
    "Architecture",
    "Buckets",
    "CacheRequest",
    "Framing",
    "Subject",
    "Trainer",
    "architecture_of",
    "trainer_named",
]
