"""Is a result as near to the exact one as law 1 wants it?

Errors of small outputs are a matter of chance: two ways of rounding differ by more than a fiftieth in either direction.
So a ratio of errors is held to 1.02 and three standard errors, which are estimated from blocks of the output (8x8 of
each sample; the standard error of a ratio of sums), and never to more than 3 / sqrt(latents) above it, as where every
latent errs by itself: of large outputs a fault makes blocks differ, and is no chance. Faults of a seam are thin: beside
it no single block, row or frame may err by more than ``WORST`` times the untiled model's own. Nor are errors always
independent from place to place: what falls short is tried again with other weights and inputs, and held to three
standard errors of these (``appeal``). Whether many cells err on one side, the mean over all of them tells.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

__all__ = ["LAW", "WORST", "Compared", "Errors", "compared", "compared_again", "errors_of"]

LAW = 1.02
WORST = 4.0
_SAME = 1e-6
"""Relative L2: so small is an error of a lower type only where nothing was rounded."""
_MOST = 0.3
"""Of chance, for several small inputs together."""
_GRID = 8


@dataclass(frozen=True)
class Errors:
    """Sums of squared differences, in float64: of blocks, and of single rows and frames. norm: the exact result's."""

    blocks: Tensor
    rows: Tensor
    frames: Tensor
    norm: float

    @property
    def relative(self) -> float:
        """The relative L2 error."""
        return math.sqrt(float(self.blocks.sum()) / self.norm) if self.norm else math.inf


@dataclass(frozen=True)
class Compared:
    """ratio: of our error and the untiled model's ``own``. allowed: of it. worst: that of a block, a row or a frame."""

    own: float
    error: float
    ratio: float
    allowed: float
    worst: float

    @property
    def fine(self) -> bool:
        """Within law 1. What is not a number is not fine."""
        return self.error <= _SAME or (self.ratio <= self.allowed and self.worst <= WORST)


def errors_of(value: Tensor, exact: Tensor) -> Errors:
    """Of a result [N, C, H, W] or [N, C, T, H, W]."""
    if value.shape != exact.shape:
        raise ValueError(f"results of {list(value.shape)} and {list(exact.shape)}")
    blocks, rows, frames, norm = [], [], [], 0.0
    for one, true in zip(value, exact, strict=True):
        squares = torch.zeros(true.shape[-2:], dtype=torch.float64, device=true.device)
        for t in range(true.shape[1] if true.ndim == 4 else 1):
            mine, wide = (each[:, t] if true.ndim == 4 else each for each in (one, true))
            wide = wide.double()
            norm += float(wide.square().sum())
            frame = (mine.to(true.device).double() - wide).square().sum(0)
            frames.append(frame.sum())
            squares += frame
        rows.append(squares.sum(1))
        bands = [band.sum(0) for band in squares.tensor_split(min(_GRID, len(squares)))]
        blocks += [block.sum() for band in bands for block in band.tensor_split(min(_GRID, len(band)))]
    return Errors(torch.stack(blocks).cpu(), torch.cat(rows).cpu(), torch.stack(frames).cpu(), norm)


def compared(ours: Errors, own: Errors, latents: int) -> Compared:
    """Of errors from the same exact result. latents: how many there are, all channels counted once."""
    mine, theirs = ours.blocks, own.blocks
    error, base = ours.relative, own.relative
    if not base:
        return Compared(base, error, math.inf if error else 1.0, LAW, 1.0)
    ratio = float(mine.sum() / theirs.sum())
    count = len(mine)
    apart = (mine - ratio * theirs).square().sum() * count / max(1, count - 1)
    chance = 0.5 * float(apart.sqrt() / theirs.sum()) / ratio if ratio else 0.0
    most = 3 / math.sqrt(latents)
    allowed = LAW * (1 + (min(3 * chance, most) if count > 1 else most))
    places = ((mine, theirs), (ours.rows, own.rows), (ours.frames, own.frames))
    worst = max(float((e / o.clamp(min=float(o.mean()))).max()) for e, o in places)
    return Compared(base, error, math.sqrt(ratio), allowed, math.sqrt(worst))


def compared_again(pairs: Sequence[tuple[Errors, Errors]]) -> Compared:
    """Of several inputs together, as (ours, the untiled model's) of each; all have one shape."""
    mine, theirs = (
        Errors(
            torch.stack([each.blocks for each in side]).sum(0),
            torch.stack([each.rows for each in side]).sum(0),
            torch.stack([each.frames for each in side]).sum(0),
            sum(each.norm for each in side),
        )
        for side in zip(*pairs, strict=True)
    )
    found = compared(mine, theirs, latents=1)  # what it allows is not asked
    logs = torch.tensor([math.log(ours.relative / own.relative) for ours, own in pairs], dtype=torch.float64)
    chance = float(logs.std()) / math.sqrt(len(pairs))
    return replace(found, allowed=LAW * (1 + min(3 * chance, _MOST)))
