"""What a run that continues another tells and leaves."""

from __future__ import annotations

from pathlib import Path

import torch

from tvae.pipeline.jobs import Event, Notice, Progress
from tvae.pipeline.latents import open_latents

__all__ = ["contents", "first_frame", "same", "went_on"]


def went_on(events: list[Event]) -> bool:
    return any("interrupted run" in event.message for event in events if isinstance(event, Notice))


def first_frame(events: list[Event]) -> int:
    """Frames that were done when the first event of progress came."""
    return next(event.done for event in events if isinstance(event, Progress))


def contents(folder: Path) -> dict[str, torch.Tensor]:
    reader = open_latents(folder)
    parts = list(reader)
    found = {name: torch.cat([part.tensors[name] for part in parts], 1) for name in parts[0].tensors}
    return found | {"pts": torch.tensor([pts for part in parts for pts in part.pts])}


def same(one: Path, other: Path) -> bool:
    first, second = contents(one), contents(other)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
