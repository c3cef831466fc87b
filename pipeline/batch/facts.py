"""What a manifest says of an output beside its size: of latents what their own header says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tvae.pipeline.errors import InputError
from tvae.pipeline.latents import is_latents, open_latents
from tvae.pipeline.latents.tensor_file import read_header

__all__ = ["facts_of"]


def facts_of(output: Path) -> dict[str, Any]:
    """JSON-able; empty for pictures and films, and for latents that cannot be read."""
    if not is_latents(output):
        return {}
    try:
        reader = open_latents(output)
        tensors = read_header(reader.files[0])[2]
        latent_frames = reader.latent_frames
    except InputError:
        return {}
    meta = reader.meta
    shapes = {name: _shape(spec.shape, latent_frames) for name, spec in tensors.items()}
    found: dict[str, Any] = {"kind": meta.kind, "frames": reader.frames, "tensors": shapes, "dtype": meta.dtype}
    found |= {"space": meta.space.name, "posterior": meta.posterior.kind, "fingerprint": meta.fingerprint}
    return found | {"vae": {"id": meta.vae.id, "class": meta.vae.class_name, "weights_sha256": meta.vae.weights_sha256}}


def _shape(shape: tuple[int, ...], latent_frames: int) -> list[int]:
    """Of all parts of a clip joined."""
    return [shape[0], latent_frames, *shape[2:]] if len(shape) == 4 else [*shape]
