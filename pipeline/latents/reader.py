"""Reading latents back, from an image file, a folder, its index, or a single part: they all look alike.

::

    with_parts = open_latents(path)          # checks metadata and that every file is there and whole
    for part in with_parts:                  # reads one part at a time
        part.tensors["latents"], part.pts
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvae.pipeline.errors import InputError
from tvae.pipeline.files.checked import parse_json
from tvae.pipeline.files.content_checksum import of_file
from tvae.pipeline.files.record import to_json
from tvae.pipeline.files.tensor_header import read_texts
from tvae.pipeline.latents.alpha import ALPHA
from tvae.pipeline.latents.image_file import IMAGE_SUFFIX
from tvae.pipeline.latents.index import INDEX_NAME, Index, PartEntry, read_index
from tvae.pipeline.latents.meta import FORMAT, LatentsMeta, VaeIdentity
from tvae.pipeline.latents.tensor_file import read_header, read_tensors
from tvae.pipeline.latents.video_folder import VIDEO_SUFFIX
from tvae.pipeline.media.formats import Kind
from tvae.pipeline.models.same_values import same_values

_log = logging.getLogger("tvae")

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


@dataclass(frozen=True)
class LatentsPart:
    """The tensors of one file and the frames they stand for; see `PartRecord` for the fields."""

    tensors: dict[str, Tensor]
    """`latents`, or `mean` and `logvar`: [C, t, h, w] for a clip, [C, h, w] for an image (or [C, 1, h, w])."""
    index: int
    first_frame: int
    pts: tuple[int | None, ...]
    durations: tuple[int | None, ...]
    repeated: int
    checksum: str | None = None
    """Of the file's content, compared with it; None where the file carries none."""
    alpha: np.ndarray | None = None
    """Of an image that has one, uint8 [H, W] of the picture that decode gives back; 255: opaque."""


class LatentsReader:
    """Latents of one image or clip; iterate for its parts, as often as needed. Made by :func:`open_latents`."""

    def __init__(self, path: Path, files: tuple[Path, ...], index: Index) -> None:
        self.path = path
        self.files = files
        self.meta: LatentsMeta = index.meta
        self.frames = index.frames
        self._index = index

    @property
    def streams(self) -> dict[str, Any] | None:
        """The record of the source's other streams, for `media.SideStreams.from_json(record, reader.path)`."""
        return self._index.streams.record if self._index.streams else None

    @property
    def stream_files(self) -> tuple[str, ...]:
        """Names of the files that hold the source's other streams, in the folder."""
        return tuple(entry.file for entry in self._index.streams.files) if self._index.streams else ()

    @property
    def dropped(self) -> int:
        """Frames at the source's end that were left out."""
        return self._index.dropped

    @property
    def has_checksums(self) -> bool:
        """Whether the index has them, of itself and of the other streams; those of the parts are in the parts."""
        streams = self._index.streams.files if self._index.streams else ()
        return self._index.checked and all(entry.checksum is not None for entry in streams)

    def check_streams(self) -> None:
        """`InputError` names a file of the other streams that is damaged."""
        for entry in self._index.streams.files if self._index.streams else ():
            file = self.path / entry.file
            try:
                whole = entry.checksum is None or of_file(file) == entry.checksum
            except OSError as error:
                raise InputError(f"cannot read '{file}': {error.strerror or error}") from error
            if not whole:
                raise InputError(f"'{file}' is damaged: it is not what was written; encode again, or pass --audio none")

    @property
    def latent_frames(self) -> int:
        """Of all parts together, by their headers; 1 for an image."""
        shapes = [next(iter(read_header(file)[2].values())).shape for file in self.files]
        return sum(shape[1] if len(shape) == 4 else 1 for shape in shapes)

    def __len__(self) -> int:
        return len(self.files)

    def __iter__(self) -> Iterator[LatentsPart]:
        """Read the parts in order. `InputError` names the file that is damaged, of another clip or of another place."""
        for file, entry in zip(self.files, self._index.parts, strict=True):
            tensors, meta, part, checksum, alpha = read_tensors(file)
            foreign = None not in (checksum, entry.checksum) and checksum != entry.checksum
            if foreign or meta != self.meta or part.first_frame != entry.first_frame:
                if file == self.path:
                    raise InputError(f"'{file}' was replaced while it was read; run again")
                raise InputError(f"'{file}' belongs to other latents than its folder; encode the source again")
            times = (part.pts, part.durations)
            yield LatentsPart(tensors, part.index, part.first_frame, *times, part.repeated, checksum, alpha)

    def summary(self) -> dict[str, Any]:
        """JSON-able description for `tvae inspect`: the metadata, the tensors of every part, sizes on disk."""
        headers = [read_header(file) for file in self.files]
        tensors = [found for _, _, found in headers]
        values = sum(math.prod(spec.shape) for part in tensors for spec in part.values())
        return {
            "path": str(self.path),
            **self.meta.to_json(),
            "frames": self.frames,
            "repeated": sum(part.repeated for _, part, _ in headers),
            "dropped": self._index.dropped,
            "has_alpha": self.meta.kind == "image" and ALPHA in read_texts(self.path),
            "parts": [{"file": f.name, "tensors": to_json(t)} for f, t in zip(self.files, tensors, strict=True)],
            "values": values,
            "bytes": sum(file.stat().st_size for file in self.files),
            "streams": to_json(self._index.streams),
        }


def open_latents(path: Path) -> LatentsReader:
    """Open an image's file, a clip's folder, the folder's `index.json`, or one part of a clip.

    Checks the metadata and that all files are there and whole; the values are read and checked part by part.
    `InputError` names the file and the reason.
    """
    if path.name == INDEX_NAME:
        path = path.parent
    if path.is_dir():
        return _open_folder(path)
    meta, part, _ = read_header(path)
    frames = len(part.pts) if meta.kind == "video" else 1
    entry = PartEntry(path.name, part.first_frame, frames, path.stat().st_size)
    return LatentsReader(path, (path,), Index(meta, (entry,)))


def is_latents(path: Path) -> bool:
    """Whether this looks like latents of tvae, complete or not: tells them from media when inputs are listed."""
    if path.name == INDEX_NAME or path.is_dir():
        folder = path if path.is_dir() else path.parent
        return folder.suffix == VIDEO_SUFFIX or (folder / INDEX_NAME).is_file()
    # a broken or foreign safetensors file counts too: it gets its one clear line, and is not skipped in silence
    return path.suffix == IMAGE_SUFFIX and path.is_file()


def latents_done(path: Path, fingerprint: str) -> bool:
    """Whether complete latents of this source, VAE and options are here already (see `meta.fingerprint`)."""
    try:
        if path.suffix == IMAGE_SUFFIX:
            with suppress(IsADirectoryError, PermissionError):  # a folder, on Windows too
                return read_texts(path).get("fingerprint") == fingerprint
        return open_latents(path).meta.fingerprint == fingerprint
    except (InputError, OSError, ValueError):
        return False


def source_of(path: Path) -> tuple[str, Kind]:
    """Name and kind of the source of latents, as they say themselves. `InputError` as `open_latents`."""
    if path.suffix == IMAGE_SUFFIX and not path.is_dir():
        with suppress(OSError, ValueError, KeyError, TypeError):  # then the reader says what is wrong
            texts = read_texts(path)
            name = parse_json(texts["source"])["name"]
            if isinstance(name, str) and texts["format"] == FORMAT and texts["kind"] == "image":
                return name, "image"
    meta = open_latents(path).meta
    return meta.source.name, meta.kind


@cache
def _say(message: str) -> None:
    """Once."""
    _log.warning(message)


def same_vae(made: VaeIdentity, model: VaeIdentity) -> bool:
    """Is it the VAE that made latents, or a copy of it in another file or type?"""
    same = made.weights_sha256 == model.weights_sha256 or same_values(made.values, model.values)
    return same and made.class_name == model.class_name


def check_vae(reader: LatentsReader, model: VaeIdentity, *, other: bool = False) -> None:
    """`InputError` when the latents were made by another VAE than the one at hand. Its configuration may differ in what
    their geometry does not tell. other: it may be another one of the same geometry."""
    made = reader.meta.vae
    copy = made.weights_sha256 != model.weights_sha256 and same_values(made.values, model.values)
    if copy and made.class_name == model.class_name:
        made = replace(made, weights_sha256=model.weights_sha256)
        what = "the same values" if made.values[0] == model.values[0] else "the same VAE, stored in another type"
        _say(f"VAE '{model.id}' has other bytes than '{made.id}', which made the latents: {what}; it is taken")
    if not other and (made.class_name, made.weights_sha256) != (model.class_name, model.weights_sha256):
        raise InputError(
            f"'{reader.path}' was made by another VAE: '{made.id}' ({made.class_name}, weights "
            f"{made.weights_sha256[:12]}), not '{model.id}' ({model.class_name}, {model.weights_sha256[:12]}); "
            f"pass --vae {made.id}, or --allow-other-vae"
        )
    for name in ("latent_channels", "spatial_factor", "temporal_factor"):
        found, wanted = getattr(made, name), getattr(model, name)
        if found != wanted:
            whose = "this VAE" if other else "its VAE"
            raise InputError(f"'{reader.path}' says {name} {found}, {whose} has {wanted}; encode the source again")


def _open_folder(folder: Path) -> LatentsReader:
    index = read_index(folder)
    for entry in index.files:
        file = folder / entry.file
        if not file.is_file():
            raise InputError(f"'{folder}' is incomplete: '{entry.file}' is missing")
        if file.stat().st_size != entry.bytes:
            raise InputError(f"'{file}' is damaged: {file.stat().st_size} bytes instead of {entry.bytes}")
    return LatentsReader(folder, tuple(folder / part.file for part in index.parts), index)
