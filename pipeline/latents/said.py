"""What a manifest says of latents beside their size: what their own header says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvae.pipeline.latents.meta import LatentsMeta

__all__ = ["said_of_latents"]


def said_of_latents(meta: LatentsMeta, frames: int, shapes: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """JSON-able. shapes: of the tensors of all parts joined, by name."""
    tensors = {name: [*shape] for name, shape in shapes.items()}
    found: dict[str, Any] = {"kind": meta.kind, "frames": frames, "tensors": tensors, "dtype": meta.dtype}
    found |= {"space": meta.space.name, "posterior": meta.posterior.kind, "fingerprint": meta.fingerprint}
    return found | {"vae": {"id": meta.vae.id, "class": meta.vae.class_name, "weights_sha256": meta.vae.weights_sha256}}
