"""Caches of latents that trainers read instead of images and clips."""

from __future__ import annotations

from tvae.pipeline.caches.spec import Architecture, Buckets, CacheRequest, Framing, Subject, Trainer
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
