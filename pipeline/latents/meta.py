"""What a latent file says about itself: enough to decode with nothing else at hand, and to know a stale cache.

The records below are written as JSON: whole into the `index.json` of a video folder, field by field into the
string metadata of every safetensors file. All sizes are (width, height) in pixels of the upright picture.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from tvae.pipeline.files.checked import parse_json
from tvae.pipeline.files.record import Count, Side, Within, from_json, to_json
from tvae.pipeline.media.formats import Kind
from tvae.pipeline.media.packet_times import MOST_SECONDS
from tvae.pipeline.media.spec import Colour, PictureSpec

FORMAT = "tvae"
VERSION = 1

MOST_PATCH = 64
"""Of latents that model space folds into a channel, along each side."""

SpaceName = Literal["raw", "model"]
Factor = Annotated[int, Within(1, 4096)]
PosteriorKind = Literal["mean", "sample", "moments", "none"]


@dataclass(frozen=True)
class VaeIdentity:
    """The model that made the latents. Decoding with another one is an error, not a surprise."""

    id: str
    """As the user named it: `builtin`, a folder or a hub id."""
    class_name: str
    config_sha256: str
    weights_sha256: str
    latent_channels: Annotated[int, Within(1, 65536)]
    spatial_factor: Factor
    temporal_factor: Factor | None
    """None for an image VAE, which sees every frame on its own."""
    path: str | None = None
    """Of a folder or file: where it was, absolute."""
    values: tuple[str, ...] = ()
    """Checksums of its values as they are and in narrower types; none in files from before there were any."""

    @property
    def place(self) -> str:
        """What to open: where it was, if anything is there, or else ``id``, which may be relative to another folder."""
        return self.path if self.path is not None and os.path.exists(self.path) else self.id


@dataclass(frozen=True)
class SpaceRecord:
    """Which space the tensors are in, and the constants that lead from raw to model space (`LatentSpace.to_json`)."""

    name: SpaceName
    constants: dict[str, Any] = field(default_factory=dict)

    @property
    def patch(self) -> int:
        """Side of the squares of latents that model space folds into channels (Flux.2)."""
        patch: int = self.constants.get("patch", 1)
        return patch


@dataclass(frozen=True)
class PosteriorRecord:
    """What was kept of the encoder's Gaussian. `none`: the model has no posterior (Tiny, DC, VQ)."""

    kind: PosteriorKind
    seed: int | None = None
    """Of the item's own CPU generator; only for `sample`."""


@dataclass(frozen=True)
class SourceRecord:
    """The file the latents were made from."""

    name: str
    size: int
    mtime_ns: int
    version: str | None = None
    """Of a file that was not on this machine: its URL, without credentials, and what its store tells its contents apart
    by, such as an ETag. Left out of files where there is none."""

    @classmethod
    def of(cls, path: Path) -> SourceRecord:
        """Of an existing file (`OSError` otherwise)."""
        status = path.stat()
        return cls(path.name, status.st_size, status.st_mtime_ns)


@dataclass(frozen=True)
class Geometry:
    """From the upright source to what the encoder saw: resize, then crop, then pad by edge replication."""

    source_width: Side
    source_height: Side
    resized: tuple[Side, Side] | None = None
    """(width, height) after resizing; None: not resized."""
    crop: tuple[Count, Count, Side, Side] | None = None
    """(left, top, width, height) kept of the resized picture; None: all of it."""
    pad: tuple[Count, Count, Count, Count] = (0, 0, 0, 0)
    """(left, top, right, bottom), added last, cut off again by decode."""

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) of the picture that decode gives back."""
        return self.crop[2:] if self.crop else self.resized or (self.source_width, self.source_height)

    @property
    def padded_size(self) -> tuple[int, int]:
        """(width, height) that the encoder saw."""
        left, top, right, bottom = self.pad
        return self.size[0] + left + right, self.size[1] + top + bottom


@dataclass(frozen=True)
class PartRecord:
    """The frames inside one safetensors file. An image is one part without timestamps."""

    index: Count = 0
    first_frame: Count = 0
    pts: tuple[int | None, ...] = ()
    """Presentation time of each frame, in units of the clip's time base."""
    durations: tuple[int | None, ...] = ()
    repeated: Count = 0
    """How often the last frame was repeated to fill the chunk of a video VAE; decode drops them."""


@dataclass(frozen=True)
class LatentsMeta:
    """Everything about one image or clip but the timestamps, which travel with the parts (`PartRecord`)."""

    kind: Kind
    vae: VaeIdentity
    space: SpaceRecord
    posterior: PosteriorRecord
    dtype: str
    """Of the computation and of the tensors: `float32`, `bfloat16` or `float16`."""
    source: SourceRecord
    geometry: Geometry
    colour: Colour = field(default_factory=Colour)
    """As tagged in the source."""
    rotation: int = 0
    """Clockwise turn (0, 90, 180, 270) that was applied to make the picture upright, …"""
    mirrored: bool = False
    """… after a left-right mirroring if this is set."""
    sample_aspect_ratio: Fraction = Fraction(1)
    """Of the picture that decode gives back."""
    time_base: Fraction | None = None
    frame_rate: Fraction | None = None
    options: dict[str, Any] = field(default_factory=dict)
    """Whatever else was asked for and changes the result (size, fit, align, audio, …); JSON-able."""
    tool: str = ""
    """Name and version of the program that wrote the file."""

    @cached_property
    def fingerprint(self) -> str:
        """See :func:`fingerprint`."""
        return fingerprint(
            source=self.source,
            vae=self.vae,
            space=self.space.name,
            posterior=self.posterior,
            dtype=self.dtype,
            options=self.options,
        )

    @property
    def picture(self) -> PictureSpec:
        """What a media writer needs to know to write the decoded picture."""
        width, height = self.geometry.size
        return PictureSpec(width, height, self.time_base, self.frame_rate, self.sample_aspect_ratio, self.colour)

    def to_json(self) -> dict[str, Any]:
        """JSON-able; :meth:`from_json` is its inverse."""
        said = {**to_json(self), "source": _source(self.source)}
        return {"format": FORMAT, "version": VERSION, **said, "fingerprint": self.fingerprint}

    @classmethod
    def from_json(cls, data: Any) -> LatentsMeta:
        """`ValueError` says what is missing or does not fit."""
        check_format(data)
        meta = from_json(cls, data)
        _check(meta)
        return meta


_SORTED = json.JSONEncoder(sort_keys=True, allow_nan=False)


def fingerprint(
    *,
    source: SourceRecord,
    vae: VaeIdentity,
    space: SpaceName,
    posterior: PosteriorRecord,
    dtype: str,
    options: Mapping[str, Any],
) -> str:
    """sha256 (hex) of what determines the latents: source name, size and mtime, VAE, space, posterior, dtype, options.

    The VAE counts by class, configuration and weights, not by the name it was found under. Known before any
    work, so it decides what can be skipped. Strip height and device are not in it: results do not depend on
    them.
    """
    content = {
        "version": VERSION,
        "source": _source(source),
        "vae": [vae.class_name, vae.config_sha256, vae.weights_sha256],
        "space": space,
        "posterior": vars(posterior),
        "dtype": dtype,
        "options": to_json(options),
    }
    return hashlib.sha256(_SORTED.encode(content).encode()).hexdigest()


def _source(source: SourceRecord) -> dict[str, Any]:
    """As JSON has it: what is left out has not changed what was written before there was any."""
    return {name: value for name, value in vars(source).items() if name != "version" or value is not None}


def check_format(data: Any) -> None:
    """`ValueError` unless this is metadata of a format version that this program reads."""
    if not isinstance(data, Mapping) or data.get("format") != FORMAT:
        raise ValueError(
            "not latents of tvae (its metadata lacks format=tvae); pass --vae and --space for another program's"
        )
    if str(data.get("version")) != str(VERSION):
        raise ValueError(f"latent format version {data.get('version')}, this tvae reads version {VERSION}")


TEXTS = ("format", "fingerprint", "kind", "dtype", "tool")
"""Fields that are plain texts in the string metadata; all others are JSON."""


def to_strings(meta: LatentsMeta, part: PartRecord) -> dict[str, str]:
    """Metadata of one safetensors file."""
    fields = {**meta.to_json(), "part": to_json(part)}
    return {key: value if key in TEXTS else json.dumps(value) for key, value in fields.items()}


def from_strings(strings: Mapping[str, str]) -> tuple[LatentsMeta, PartRecord]:
    """Inverse of :func:`to_strings`; `ValueError` says what is missing or does not fit."""
    check_format(strings)
    names = {"version", "part", *(f.name for f in dataclasses.fields(LatentsMeta))}
    data = {key: _parse(key, text) for key, text in strings.items() if key in names or key in TEXTS}
    meta, part = LatentsMeta.from_json(data), from_json(PartRecord, data.get("part"), "metadata.part")
    _check_times(meta, part)
    return meta, part


def _check(meta: LatentsMeta) -> None:
    """`ValueError` for values that fit their types and not one another."""
    geometry = meta.geometry
    if geometry.crop:
        (left, top, width, height), whole = geometry.crop, geometry.resized
        across, down = whole or (geometry.source_width, geometry.source_height)
        if left + width > across or top + height > down:
            raise ValueError(f"metadata.geometry.crop {list(geometry.crop)} lies outside of {across}x{down}")
    if meta.rotation % 90 or not 0 <= meta.rotation < 360:
        raise ValueError(f"metadata.rotation: expected 0, 90, 180 or 270, found {meta.rotation}")
    if meta.kind == "video" and meta.time_base is None:
        raise ValueError("metadata.time_base is missing")
    if meta.space.name == "model":
        patch = meta.space.patch
        if type(patch) is not int or not 1 <= patch <= MOST_PATCH:
            raise ValueError(f"metadata.space.constants.patch: expected a number from 1 to {MOST_PATCH}")


def _check_times(meta: LatentsMeta, part: PartRecord) -> None:
    """`ValueError` for times that no container can hold."""
    if meta.time_base is not None:
        times = [time for time in (*part.pts, *part.durations) if time is not None]
        if max(map(abs, times), default=0) * meta.time_base > MOST_SECONDS:
            raise ValueError(f"metadata.part: a time of more than {MOST_SECONDS} seconds")


def _parse(key: str, text: str) -> Any:
    try:
        return text if key in TEXTS else parse_json(text)
    except ValueError as error:
        raise ValueError(f"metadata.{key} is not JSON as it should be: {error}") from None
