"""Folders of a clip's latents, as tests write and read them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tvae.pipeline.latents import LatentsMeta, VideoLatentsWriter
from tvae.pipeline.latents.reader import LatentsReader

__all__ = ["PTS", "damage_truncated", "latents", "names_in", "values", "write"]

PTS = [0, 3003, 6006, 9500, 12000]


def latents(frames: int, value: float = 0.0) -> dict[str, torch.Tensor]:
    return {"latents": torch.full((4, frames, 2, 3), float(value)) + torch.arange(frames).view(1, -1, 1, 1)}


def write(folder: Path, meta: LatentsMeta, value: float = 0.0, streams: dict[str, Any] | None = None) -> None:
    """Two parts, of three and of two frames."""
    with VideoLatentsWriter(folder, meta) as writer:
        writer.add(latents(3, value), PTS[:3], [3003] * 3)
        writer.add(latents(2, value + 3), PTS[3:], [2500, None])
        if streams is not None:
            writer.streams_stem.with_suffix(".mka").write_bytes(b"packets of " + str(value).encode())
        writer.commit(streams)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def values(reader: LatentsReader) -> torch.Tensor:
    return torch.cat([part.tensors["latents"] for part in reader], dim=1)[0, :, 0, 0]


def damage_truncated(folder: Path) -> None:
    path = folder / "000001.safetensors"
    path.write_bytes(path.read_bytes()[:-5])
