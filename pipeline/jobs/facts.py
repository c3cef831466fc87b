"""What an output says of itself, in its own header."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from stat import S_ISDIR
from typing import Any

from tvae.pipeline.errors import InputError
from tvae.pipeline.files.written import WrittenFile
from tvae.pipeline.jobs.events import Made
from tvae.pipeline.latents import LatentsMeta, is_latents, open_latents, said_of_latents
from tvae.pipeline.latents.index import INDEX_NAME
from tvae.pipeline.latents.tensor_file import read_header
from tvae.pipeline.media import read_fingerprint

__all__ = ["bytes_of", "facts_of", "made_of"]


def made_of(output: Path) -> Made:
    """Of an output that is complete, read once more. `OSError` and InputError where it cannot be."""
    if not output.is_dir():
        return Made(WrittenFile.of(output), facts_of(output))
    return Made(WrittenFile.of(output / INDEX_NAME), {**facts_of(output), "all_bytes": bytes_of(output)})


def bytes_of(path: Path) -> int:
    """Of a file, or of all files in a folder and below it; 0 where it cannot be read."""
    try:
        status = path.stat()
        if not S_ISDIR(status.st_mode):
            return status.st_size
        return sum(one.stat().st_size for one in path.rglob("*") if one.is_file())
    except OSError:
        return 0


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
