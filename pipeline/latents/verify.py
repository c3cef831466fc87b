"""Reads latents whole, and says whether they are what was written, and still of their source and VAE."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tvae.pipeline.errors import InputError
from tvae.pipeline.files import tensor_header
from tvae.pipeline.files.checked import is_refused
from tvae.pipeline.latents.image_file import IMAGE_SUFFIX
from tvae.pipeline.latents.index import INDEX_NAME
from tvae.pipeline.latents.meta import FORMAT, LatentsMeta, SourceRecord, SpaceRecord, VaeIdentity
from tvae.pipeline.latents.reader import is_latents, open_latents
from tvae.pipeline.models.same_values import same_values

__all__ = ["MadeBy", "Verdict", "found_below", "not_read", "verify_latents"]


@dataclass(frozen=True)
class MadeBy:
    """The VAE that latents should be of. constants: see ``SpaceRecord``; none where its model space is not known."""

    class_name: str
    weights_sha256: str
    values: tuple[str, ...] = ()
    constants: Mapping[str, Any] = field(default_factory=dict)

    def made(self, vae: VaeIdentity) -> bool:
        """Is it this VAE, or a copy of it in another file or type?

        Configurations are not compared: a single file has none, and what is read off it depends on ``--vae-of``. So an
        edit of a configuration that changes how the same weights compute is not seen.
        """
        same = self.weights_sha256 == vae.weights_sha256 or same_values(self.values, vae.values)
        return same and self.class_name == vae.class_name

    def has_space(self, space: SpaceRecord, vae: VaeIdentity) -> bool:
        """Is model space as it was, for latents in it that this VAE made? Yes where it is not known on both sides, and
        of copies in narrower types, whose constants may be rounded, too."""
        if space.name == "raw" or (self.weights_sha256 != vae.weights_sha256 and self.values[:1] != vae.values[:1]):
            return True
        return all(self.constants[key] == space.constants[key] for key in self.constants.keys() & space.constants)


@dataclass(frozen=True)
class Verdict:
    """*stale*: whole, but the source or the VAE is another by now. *unchecked*: whole as far as can be seen, but a file
    of it has no checksum: another program wrote it, or tvae before there were any. *unreadable*: this machine, or a
    store, does not give it, which says nothing of what it is."""

    path: Path
    state: Literal["fine", "unchecked", "stale", "incomplete", "damaged", "unreadable"]
    reason: str | None = None

    @classmethod
    def of_error(cls, path: Path, error: InputError) -> Verdict:
        """What is wrong with a file, without its path, which is told before."""
        why = str(error)
        for said in (f"'{path}' is damaged: ", f"'{path}': damaged: "):
            why = why.removeprefix(said)
        return cls(path, "unreadable" if is_refused(error.__cause__) else "damaged", why)


def not_read(path: Path, error: OSError, then: str = "") -> Verdict:
    """Of a file that was written and cannot be read. then: what to do where it has gone."""
    state: Literal["unreadable", "incomplete"] = "unreadable" if is_refused(error) else "incomplete"
    return Verdict(path, state, f"it cannot be read ({error.strerror or error}){then if state == 'incomplete' else ''}")


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
            if entry.is_dir():
                yield from found_below(inside)
            elif inside.suffix == IMAGE_SUFFIX and not _foreign(inside):
                yield inside
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
        return Verdict.of_error(path, error)
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
    if made_by is not None and not made_by.has_space(meta.space, vae):
        return "it is in another model space than this VAE's configuration gives: encode again, or correct that"
    return None


def _foreign(path: Path) -> bool:
    """Whether it is whole and says nothing of latents: weights, say. A damaged file may be anything, and counts."""
    try:
        return tensor_header.read_texts(path).get("format") != FORMAT
    except (OSError, ValueError):
        return False
