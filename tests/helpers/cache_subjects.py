"""A subject of every trainer and architecture, and latents for it, to see what files come of it."""

from __future__ import annotations

from pathlib import PurePosixPath

import numpy as np
import torch

from tvae.pipeline.caches import TRAINERS, Framing, Subject
from tvae.pipeline.caches.spec import Piece
from tvae.pipeline.files.stored import Stored

__all__ = ["files_of"]


def files_of(
    trainer: str,
    architecture: str,
    *,
    piece: Piece | None = None,
    flip: bool = False,
    frames: int = 1,
    alpha: np.ndarray | None = None,
) -> dict[str, Stored]:
    """Names and contents for ``sub/a.b.png`` of 100x80 pixels, framed to 64x48, with latents of 6x8."""
    found = TRAINERS[trainer]
    one = next(one for one in found.architectures if one.name == architecture)
    subject = Subject(
        PurePosixPath("sub/a.b.png"), (100, 80), Framing((64, 51), (0, 1, 64, 48), "area"), one, piece, flip, alpha
    )
    dtype = getattr(torch, one.dtype or "float32")
    channels = (one.channels or 4) * (4 if one.space == "model" and "AutoencoderKLFlux2" in one.classes else 1)
    values = [torch.full((channels, frames, 6, 8), float(n), dtype=dtype) for n in range(1 + flip)]
    names = [name.as_posix() for name in found.files(subject)]
    return dict(zip(names, found.contents(subject, values), strict=True))
