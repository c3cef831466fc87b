"""Reads latents whole, and says whether they are what was written, and still of their source and VAE."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tvae.pipeline.errors import InputError
from tvae.pipeline.files import tensor_header
from tvae.pipeline.latents.image_file import IMAGE_SUFFIX
from tvae.pipeline.latents.index import INDEX_NAME
from tvae.pipeline.latents.meta import FORMAT, LatentsMeta, SourceRecord, VaeIdentity
from tvae.pipeline.latents.reader import is_latents, open_latents
from tvae.pipeline.models.same_values import same_values

__all__ = ["MadeBy", "Verdict", "found_below", "verify_latents"]


@dataclass(frozen=True)
class MadeBy:
    """The VAE that latents should be of."""

    class_name: str
    config_sha256: str
    weights_sha256: str
    values: tuple[str, ...] = ()

    def made(self, vae: VaeIdentity) -> bool:
        """Is it this VAE, or a copy of it in another file or type?"""
        if self.weights_sha256 != vae.weights_sha256:
            return self.class_name == vae.class_name and same_values(self.values, vae.values)
        return (self.class_name, self.config_sha256) == (vae.class_name, vae.config_sha256)


@dataclass(frozen=True)
class Verdict:
    """*stale*: whole, but the source or the VAE is another by now. *unchecked*: whole as far as can be seen, but a file
    of it has no checksum: another program wrote it, or tvae before there were any."""

    path: Path
    state: Literal["fine", "unchecked", "stale", "incomplete", "damaged"]
    reason: str | None = None


def found_below(path: Path) -> Iterator[Path]:
    """The path itself where it names latents, else all latents in the folder and below it; links are not followed.

    Other programs' safetensors files in it do not count. `InputError` where the path is neither.
    """
    if is_latents(path):
        yield path.parent if path.name == INDEX_NAME else path
    elif path.is_dir():
        with os.scandir(path) as listed:
            entries = sorted(listed, key=lambda entry: entry.name)
        for entry in entries:
            inside = Path(entry.path)
            if entry.name.startswith(".") or entry.is_symlink():
                continue
            if entry.is_dir() or (inside.suffix == IMAGE_SUFFIX and not _foreign(inside)):
                yield from found_below(inside)
    else:
        raise InputError(f"{path} is no latents: name a file that ends in {IMAGE_SUFFIX}, or a folder")


def verify_latents(path: Path, source: Path | None = None, made_by: MadeBy | None = None) -> Verdict:
    """Read everything that latents are made of. source: the file that they should be of."""
    if path.is_dir() and not (path / INDEX_NAME).exists():
        return Verdict(path, "incomplete", "its encode was interrupted, or is running; run it again")
    try:
        reader = open_latents(path)
        reader.check_streams()
        checked = reader.has_checksums
        for part in reader:
            checked = checked and part.checksum is not None
    except InputError as error:
        return Verdict(path, "damaged", str(error))
    changed = _changed(reader.meta, source, made_by)
    if changed is not None:
        return Verdict(path, "stale", changed)
    return Verdict(path, "fine") if checked else Verdict(path, "unchecked", "it carries no checksum")


def _changed(meta: LatentsMeta, source: Path | None, made_by: MadeBy | None) -> str | None:
    if source is not None:
        try:
            if SourceRecord.of(source) != meta.source:
                return f"its source {source} has changed"
        except OSError as error:
            return f"its source {source} cannot be read ({error.strerror or error})"
    vae = meta.vae
    if made_by is not None and not made_by.made(vae):
        return f"it was made by another VAE: '{vae.id}' ({vae.class_name}, weights {vae.weights_sha256[:12]})"
    return None


def _foreign(path: Path) -> bool:
    """Whether it is whole and says nothing of latents: weights, say. A damaged file may be anything, and counts."""
    try:
        return tensor_header.read_texts(path).get("format") != FORMAT
    except (OSError, ValueError):
        return False
