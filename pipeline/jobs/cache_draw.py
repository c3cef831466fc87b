"""Samples of posteriors for a cache: every image has noise of its own, and the same in every run."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from tvae.pipeline.caches import Subject

__all__ = ["drawn", "generator_of"]


def generator_of(subject: Subject, seed: int) -> torch.Generator:
    """Of an image or a piece of a video, by its place below the output folder and the seed of the run."""
    piece = "" if subject.piece is None else f":{subject.piece.start}"
    text = f"{seed}:{subject.source}{piece}".encode(errors="surrogateescape")
    return torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(text).digest()[:7], "big"))


def drawn(mean: Tensor, logvar: Tensor, generator: torch.Generator) -> Tensor:
    """A sample of a posterior, of its type; computed in float32."""
    noise = torch.randn(mean.shape, generator=generator)
    return (mean.float() + torch.exp(0.5 * logvar.float()) * noise).to(mean.dtype)
