"""Files of OneTrainer's, as its window writes them, and caches made of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from tvae.pipeline.caches import Buckets, CacheRequest
from tvae.pipeline.jobs import Event, Job, run_job

__all__ = ["XL", "cached", "concept", "files_in", "photo", "written"]

XL = "STABLE_DIFFUSION_XL_10_BASE"


def photo(path: Path, width: int = 96, height: int = 64, seed: int = 0, **saving: Any) -> Path:
    """A picture whose pixels are like their neighbours."""
    path.parent.mkdir(parents=True, exist_ok=True)
    small = np.random.default_rng(seed).integers(0, 256, (height // 8 + 2, width // 8 + 2, 3), dtype=np.uint8)
    Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC).save(path, **saving)
    return path


def concept(path: object, seed: int = 1, image: Mapping[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """A concept whose crops are centred, unless ``image`` says otherwise."""
    settings = {"__version": 0, "enable_crop_jitter": False, **(image or {})}
    return {"__version": 2, "path": str(path), "seed": seed, "type": "STANDARD", "image": settings, **fields}


def written(path: Path, content: object) -> Path:
    """A JSON file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    return path


def cached(
    model: Any,
    concepts: Sequence[Mapping[str, Any]],
    out: Path,
    *,
    architecture: str | None = XL,
    size: int | None = 128,
    buckets: bool = True,
    config: Mapping[str, Any] | None = None,
    on_event: Callable[[Event], None] = lambda event: None,
    **fields: Any,
) -> list[Event]:
    """The events of a job. config: of the training, which then says architecture and size. on_event: hears them, too,
    as they come."""
    events: list[Event] = []

    def hear(event: Event) -> None:
        events.append(event)
        on_event(event)

    named = written(out.parent / "concepts.json", concepts)
    training = None if config is None else str(written(out.parent / "config.json", config))
    request = CacheRequest("onetrainer", architecture, Buckets(buckets), concepts=str(named), config=training)
    if config is not None:
        size, request = None, CacheRequest("onetrainer", concepts=str(named), config=training)
    sides = None if size is None else (size, size)
    job = Job("cache", (), output=str(out), vae=str(model.folder), dtype="float32", size=sides, cache=request, **fields)
    run_job(job, hear)
    return events


def files_in(out: Path) -> dict[str, Any]:
    """Values of all of the trainer's files, by their place below the folder of their concept."""
    found = sorted(out.glob("image/*/*/*.pt"))
    return {path.relative_to(out / "image").as_posix(): torch.load(path, weights_only=True) for path in found}
