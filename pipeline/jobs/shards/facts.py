"""What a shard and a sample say of how they were made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tvae.pipeline.caches import Subject
from tvae.pipeline.caches.record import FileRecord
from tvae.pipeline.caches.shards import Sample, key_of
from tvae.pipeline.caches.shards.record import ShardRecord
from tvae.pipeline.jobs.cache_plan import CachePlan
from tvae.pipeline.jobs.describe import identity, tool

__all__ = ["sample_of", "shard_facts"]


def shard_facts(plan: CachePlan) -> ShardRecord:
    """Of a shard that this job fills, without its file and its samples."""
    what = plan.trainer.name, plan.architecture.name, identity(plan.model), plan.options
    return ShardRecord(*what, plan.shard_bytes, FileRecord("", 0, ""), (), tool())


def sample_of(plan: CachePlan, subject: Subject, latents: Sequence[Tensor], texts: Mapping[str, bytes]) -> Sample:
    """latents: [C, h, w] or [C, t, h, w] of the subject and, where wanted, of it mirrored."""
    arrays = [_array(one) for one in latents]
    vae, framing = identity(plan.model), subject.framing
    facts: dict[str, Any] = {
        "source": subject.source.as_posix().encode(errors="surrogateescape").decode(errors="replace"),
        "original_size": list(subject.size),
        "resized": list(framing.resized),
        "crop": list(framing.crop),
        "space": plan.architecture.space,
        "posterior": plan.posterior,
        "vae": {"class": vae.class_name, "weights_sha256": vae.weights_sha256},
    }
    if subject.piece is not None:
        facts |= {"start": subject.piece.start, "frames": subject.piece.frames, "fps": subject.piece.fps}
    return Sample(sample_key(plan, subject), arrays[0], facts, arrays[1] if subject.flip else None, texts)


def sample_key(plan: CachePlan, subject: Subject) -> str:
    """Pieces are told apart where a video may have several."""
    several = subject.piece is not None and plan.request.stride is not None
    return key_of(subject.source, subject.piece.start if subject.piece is not None and several else None)


def _array(value: Tensor) -> np.ndarray:
    """NumPy has no bfloat16; float32 holds its values exactly."""
    wide = value.float() if value.dtype is torch.bfloat16 else value
    found: Any = wide.detach().cpu().contiguous().numpy()
    return found
