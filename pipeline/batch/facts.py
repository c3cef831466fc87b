"""What a manifest says of an output beside its size: what its own header says."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tvae.pipeline.errors import InputError
from tvae.pipeline.latents import LatentsMeta, is_latents, open_latents, said_of_latents
from tvae.pipeline.latents.tensor_file import read_header
from tvae.pipeline.media import read_fingerprint
from tvae.pipeline.stores import RemotePath

__all__ = ["facts_of", "whole_name"]


def whole_name(source: Path) -> str:
    """A source's path, whatever folder one is in, or its URL."""
    name = str(source)
    if isinstance(source, RemotePath) or os.path.isabs(name):
        return name
    return os.path.join(os.getcwd(), name) if name != os.curdir else os.getcwd()  # in a fifth of Path's time


def facts_of(output: Path) -> dict[str, Any]:
    """JSON-able; of pictures and films their fingerprint alone. Empty where there is none, and for latents that cannot
    be read."""
    if not is_latents(output):
        fingerprint = read_fingerprint(output)
        return {} if fingerprint is None else {"fingerprint": fingerprint}
    try:
        meta, frames, shapes = _of_clip(output) if output.is_dir() else _of_image(output)
    except InputError:
        return {}
    return said_of_latents(meta, frames, shapes)


def _of_image(output: Path) -> tuple[LatentsMeta, int, Mapping[str, Sequence[int]]]:
    """Of one reading: a manifest has a line for each of many small files."""
    meta, _, tensors = read_header(output)
    return meta, 1, {name: spec.shape for name, spec in tensors.items()}


def _of_clip(output: Path) -> tuple[LatentsMeta, int, Mapping[str, Sequence[int]]]:
    """The shapes are those of all parts joined."""
    reader = open_latents(output)
    latent_frames = reader.latent_frames
    shapes = {name: spec.shape for name, spec in read_header(reader.files[0])[2].items()}
    return reader.meta, reader.frames, {name: [c, latent_frames, *size] for name, (c, _, *size) in shapes.items()}
