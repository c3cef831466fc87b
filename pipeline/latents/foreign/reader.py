"""Other programs' latents behind the interface of ``LatentsReader``: what they do not say is given."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvae.pipeline.errors import InputError
from tvae.pipeline.latents.foreign.shapes import Wanted, cut_apart
from tvae.pipeline.latents.foreign.tensors import tensor_in
from tvae.pipeline.latents.index import Index, PartEntry
from tvae.pipeline.latents.meta import (
    Geometry,
    LatentsMeta,
    PosteriorRecord,
    SourceRecord,
    SpaceRecord,
    VaeIdentity,
)
from tvae.pipeline.latents.reader import LatentsPart, LatentsReader
from tvae.pipeline.latents.tensor_file import check_finite

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["ForeignLatents", "foreign_latents", "foreign_meta", "open_foreign"]


@dataclass(frozen=True)
class ForeignLatents:
    """One image or clip in a file: the ``number``-th of ``count``. key: see ``tensor_in``."""

    path: Path
    key: str | None
    wanted: Wanted
    number: int
    count: int
    frames: int
    """Latent frames."""


class _ForeignReader(LatentsReader):
    """Of one image or clip, [C, t, h, w], which is read when the reader is made."""

    def __init__(self, path: Path, index: Index, tensor: Tensor) -> None:
        super().__init__(path, (path,), index)
        self._tensor = tensor

    @property
    def latent_frames(self) -> int:
        return self._tensor.shape[1]

    def __iter__(self) -> Iterator[LatentsPart]:
        times = range(self.frames) if self.meta.kind == "video" else range(0)
        yield LatentsPart({"latents": self._tensor}, 0, 0, tuple(times), tuple(1 for _ in times), 0)

    def summary(self) -> dict[str, Any]:
        return {"path": str(self.path), **self.meta.to_json(), "shape": [*self._tensor.shape]}


def foreign_latents(path: Path, key: str | None, wanted: Wanted) -> list[ForeignLatents]:
    """What a file holds, by number. Raises InputError."""
    cut = cut_apart(tensor_in(path, key), wanted, str(path))
    return [ForeignLatents(path, key, wanted, n, len(cut), one.shape[1]) for n, one in enumerate(cut)]


def open_foreign(
    found: ForeignLatents, vae: VaeIdentity, space: SpaceRecord, frames: int, rate: Fraction
) -> LatentsReader:
    """Read one of a file's images or clips. Raises InputError.

    vae, space: what the user said they are of. frames: pictures that they decode to. rate: of a clip, in pictures a
    second.
    """
    cut = cut_apart(tensor_in(found.path, found.key), found.wanted, str(found.path))
    if len(cut) != found.count:
        raise InputError(f"'{found.path}' has changed during the run")
    tensor = cut[found.number].contiguous()
    check_finite({found.key or "latents": tensor}, str(found.path))
    options = {"key": found.key, "number": found.number, "grid": found.wanted.grid}
    meta = foreign_meta(tensor, SourceRecord.of(found.path), vae, space, frames, rate, options)
    entry = PartEntry(found.path.name, 0, frames, found.path.stat().st_size)
    return _ForeignReader(found.path, Index(meta, (entry,)), tensor)


def foreign_meta(
    tensor: Tensor,
    source: SourceRecord,
    vae: VaeIdentity,
    space: SpaceRecord,
    frames: int,
    rate: Fraction,
    options: dict[str, Any] | None = None,
) -> LatentsMeta:
    """Of latents [C, ..., h, w] of which no more is known than this. frames, rate: see ``open_foreign``."""
    patch = space.patch if space.name == "model" else 1
    height, width = (side * vae.spatial_factor * patch for side in tensor.shape[-2:])
    is_clip = frames > 1
    return LatentsMeta(
        kind="video" if is_clip else "image",
        vae=vae,
        space=space,
        posterior=PosteriorRecord("none"),
        dtype=str(tensor.dtype).removeprefix("torch."),
        source=source,
        geometry=Geometry(width, height),
        time_base=1 / rate if is_clip else None,
        frame_rate=rate if is_clip else None,
        options=options or {},
    )
