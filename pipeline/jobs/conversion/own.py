"""tvae's own latents as what is converted: each says what it was made of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath

import torch

from tvae.pipeline.caches.record import record_place
from tvae.pipeline.caches.spec import Piece
from tvae.pipeline.errors import InputError, TvaeError
from tvae.pipeline.files.checked import is_name
from tvae.pipeline.jobs.conversion.given import Given, Taken
from tvae.pipeline.jobs.found import Found
from tvae.pipeline.jobs.items import expand
from tvae.pipeline.jobs.job import Job
from tvae.pipeline.jobs.outputs import Item
from tvae.pipeline.latents import LatentsReader, open_latents, source_of
from tvae.pipeline.media.formats import Kind

__all__ = ["own_items", "taken"]


def own_items(job: Job) -> list[Item]:
    """The latents that a job's input leads to, each with its source's place below the output folder. UsageError."""
    found = expand(replace(job, operation="decode", cache=None, size=None))
    return [_item(one, index, Path(job.output or ".")) for index, one in enumerate(found)]


def _item(found: Found, index: int, output: Path) -> Item:
    problem, name, kinds = found.problem, found.name, frozenset[Kind]()
    if problem is None:
        try:
            name, kind = source_of(found.path)
            kinds = frozenset({kind})
            if not is_name(name):
                problem = f"{found.path}: its source is called '{name}', and no file can be"
        except TvaeError as error:
            problem = str(error)
    below = None if problem is not None else PurePosixPath((found.below / name).as_posix())
    record = record_place(output, found.below / name)
    return Item(found.path, index, kinds, record.parent, record.name, False, False, problem, below=below)


def taken(item: Item) -> Taken:
    """Raises InputError."""
    reader = open_latents(item.source)
    return Taken(reader.meta, reader.files, lambda: _read(reader))


def _read(reader: LatentsReader) -> Iterator[Given]:
    meta, parts = reader.meta, [*reader]
    tensors = {name: torch.cat([_timed(part.tensors[name]) for part in parts], 1) for name in parts[0].tensors}
    if meta.kind == "image":
        yield Given(meta, tensors)
        return
    if len(reader.files) == 1 and reader.path.is_file():
        raise InputError(f"'{reader.path}' is a part of a clip; name its folder")
    repeated = sum(part.repeated for part in parts)
    yield Given(meta, tensors, Piece(0, reader.frames, float(meta.frame_rate or 1)), repeated)


def _timed(value: torch.Tensor) -> torch.Tensor:
    return value if value.ndim == 4 else value.unsqueeze(1)
