"""tvae's own latents as what is converted: each says what it was made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import torch

from tvae.pipeline.caches.record import record_place
from tvae.pipeline.caches.spec import Piece, timed
from tvae.pipeline.errors import InputError, TvaeError
from tvae.pipeline.files.checked import is_name
from tvae.pipeline.files.tensor_header import read_header
from tvae.pipeline.jobs.conversion.given import Cached, Given, Taken, checksum_of
from tvae.pipeline.jobs.found import Found
from tvae.pipeline.jobs.items import expand
from tvae.pipeline.jobs.job import Job
from tvae.pipeline.jobs.outputs import Item
from tvae.pipeline.latents import IMAGE_SUFFIX, LatentsMeta, LatentsReader, open_latents, source_of
from tvae.pipeline.latents.meta import FORMAT
from tvae.pipeline.media.formats import Kind

__all__ = ["own_items", "taken"]

_NO_ALPHA = "the alpha of images is left out; tvae cache --for kohya --alpha-mask makes masks of the images"


def own_items(job: Job) -> list[tuple[Item, tuple[Path, ...]]]:
    """The latents that a job's input leads to, each with its source's place below the output folder. Pieces of one
    video, which came out of a trainer's cache, are one item. UsageError."""
    found = expand(replace(job, operation="decode", cache=None, size=None))
    alike: dict[object, list[tuple[Found, _Read]]] = {}
    for number, one in enumerate(found):
        read = _source(one)
        alike.setdefault((one.below, read.name) if read.is_piece else number, []).append((one, read))
    output = Path(job.output or ".")
    return [
        (_item(*members[0], index, output), tuple(one.path for one, _ in members))
        for index, members in enumerate(alike.values())
    ]


class _Read(NamedTuple):
    """What latents say of their source."""

    name: str
    kinds: frozenset[Kind]
    problem: str | None
    is_piece: bool = False


def _source(found: Found) -> _Read:
    if found.problem is not None:
        return _Read(found.name, frozenset(), found.problem)
    if _of_another_program(found.path):
        told = "a trainer's cache is named with --from, by its folder; other files are converted without --for"
        return _Read(found.name, frozenset(), f"'{found.path}' is not latents of tvae; {told}")
    try:
        name, kind = source_of(found.path)
        is_piece = kind == "video" and Cached.of(open_latents(found.path).meta) is not None
    except TvaeError as error:
        return _Read(found.name, frozenset(), str(error))
    problem = None if is_name(name) else f"{found.path}: its source is called '{name}', and no file can be"
    return _Read(name, frozenset({kind}), problem, is_piece)


def _of_another_program(path: Path) -> bool:
    """Is it a whole file that does not say it is of tvae?"""
    if path.is_dir():
        return False
    try:
        return path.suffix != IMAGE_SUFFIX or read_header(path).metadata.get("format") != FORMAT
    except (OSError, ValueError):  # damaged, which the reader of latents tells
        return False


def _item(found: Found, read: _Read, index: int, output: Path) -> Item:
    if read.problem is not None:  # of a folder without latents, too, which has no name that a record could have
        return Item(found.path, index, read.kinds, output, read.name, False, False, read.problem)
    record = record_place(output, found.below / read.name)
    below = PurePosixPath((found.below / read.name).as_posix())
    return Item(found.path, index, read.kinds, record.parent, record.name, False, False, below=below)


def taken(files: Sequence[Path]) -> Taken:
    """Of an item's files. Raises InputError."""
    readers = [open_latents(file) for file in files]
    readers.sort(key=lambda reader: _start(reader.meta))
    checksum = checksum_of(file for reader in readers for file in reader.files)
    return Taken(readers[0].meta, lambda: map(_read, readers), checksum, len(readers))


def _start(meta: LatentsMeta) -> int:
    """The frame that a piece of a video begins with."""
    cached = Cached.of(meta)
    return 0 if cached is None else cached.start


def _read(reader: LatentsReader) -> Given:
    meta, parts = reader.meta, [*reader]
    tensors = {name: torch.cat([timed(part.tensors[name]) for part in parts], 1) for name in parts[0].tensors}
    if meta.kind == "image":
        return Given(meta, tensors, notices=() if parts[0].alpha is None else (_NO_ALPHA,))
    if reader.path.is_file():
        raise InputError(f"'{reader.path}' is a part of a clip; name its folder")
    piece = Piece(_start(meta), reader.frames, float(meta.frame_rate or 1))
    return Given(meta, tensors, piece, sum(part.repeated for part in parts))
