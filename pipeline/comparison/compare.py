"""One pair: values are compared as they are stored, pictures frame by frame as RGB of 8 bits."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Literal, TypeVar

import torch
from torch import Tensor

from tvae.pipeline.comparison.distance import Distance
from tvae.pipeline.errors import InputError
from tvae.pipeline.jobs.convert import joined
from tvae.pipeline.jobs.metrics import Quality, QualityMeter
from tvae.pipeline.jobs.reading import blame_input
from tvae.pipeline.latents import LatentsReader, open_latents
from tvae.pipeline.latents.foreign import SUFFIXES, tensors_in
from tvae.pipeline.latents.foreign.tensors import ALONE, tensor_in
from tvae.pipeline.latents.index import INDEX_NAME
from tvae.pipeline.latents.tensor_file import is_ours
from tvae.pipeline.media import MAX_PIXELS, Frame, Reader
from tvae.pipeline.media.sandbox import Sandbox

__all__ = ["Comparison", "compare"]

T = TypeVar("T")
_TOLD = 3
"""Names that a message lists."""


@dataclass(frozen=True)
class Comparison:
    """relative_l2: ``||second - first|| / ||first||``. largest: the largest absolute difference, in levels of 255 for
    pictures. quality: of pictures. notices: what to know about it, a line each."""

    kind: Literal["latents", "tensors", "image", "video"]
    relative_l2: float
    largest: float
    quality: Quality | None = None
    notices: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """Are all values?"""
        return self.relative_l2 == 0


def compare(first: Path, second: Path, sandbox: Sandbox, max_pixels: int = MAX_PIXELS) -> Comparison:
    """Two files, or folders of a clip's latents. The first is the reference. A clip is read a frame or a part at a
    time, other files whole.

    Raises InputError for what cannot be read, or is not of one kind, shape, space or number of frames.
    """
    own = [path.is_dir() or path.name == INDEX_NAME or is_ours(path) for path in (first, second)]
    tensors = [of or path.suffix.lower() in SUFFIXES for of, path in zip(own, (first, second), strict=True)]
    if all(own):
        return _of_latents(first, second)
    if all(tensors):
        return _of_tensors(*_alike((first, second), own))
    if any(tensors):
        raise InputError(f"{first if tensors[0] else second} holds latents or tensors, and the other does not")

    def opened(path: Path) -> Reader:
        with _blamed(path):
            return sandbox.open_reader(path, max_pixels)

    with opened(first) as reference, opened(second) as other:
        return _of_pictures((first, reference), (second, other))


def _of_latents(first: Path, second: Path) -> Comparison:
    with _blamed(first):
        reference = open_latents(first)
    with _blamed(second):
        other = open_latents(second)
    spaces = reference.meta.space.name, other.meta.space.name
    if spaces[0] != spaces[1]:
        raise InputError(
            f"{first} is in {spaces[0]} space and {second} in {spaces[1]}; make them alike with tvae convert --to-space"
        )
    vaes = reference.meta.vae, other.meta.vae
    distance, steps = Distance(), zip_longest(_read(first, _steps(reference)), _read(second, _steps(other)))
    for count, (here, there) in enumerate(steps):
        if here is None or there is None:
            raise InputError(_shorter(first if here is None else second, count, "frames of latents"))
        _add(distance, here, there)
    told = f"two VAEs made them: {vaes[0].id} and {vaes[1].id}"
    return _result("latents", distance, told if vaes[0].weights_sha256 != vaes[1].weights_sha256 else None)


def _steps(reader: LatentsReader) -> Iterator[dict[str, Tensor]]:
    """An image's tensors, or a clip's for each frame of latents, however it is cut into files."""
    for part in reader:
        some = next(iter(part.tensors.values()))
        if some.ndim != 4:
            yield part.tensors
            continue
        for n in range(some.shape[1]):
            yield {name: value[:, n] for name, value in part.tensors.items()}


def _alike(paths: Sequence[Path], own: Sequence[bool]) -> list[Mapping[str, Tensor]]:
    """All tensors of two files where they have the same names; else the latents of both, which programs call otherwise
    than tvae does, if it is clear which tensors those are."""
    found: list[Mapping[str, Tensor]] = []
    for path, ours in zip(paths, own, strict=True):
        with _blamed(path):
            if ours:
                reader = open_latents(path)
                found.append(joined([*reader], reader.meta))
            else:
                found.append(tensors_in(path))
    if found[0].keys() != found[1].keys():
        with suppress(InputError):
            meant = zip(paths, own, found, strict=True)
            return [tensors if ours else {ALONE: tensor_in(path)} for path, ours, tensors in meant]
    return found


def _of_tensors(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> Comparison:
    distance = Distance()
    _add(distance, first, second)
    return _result("tensors", distance, None)


def _add(distance: Distance, first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> None:
    if first.keys() != second.keys():
        here, there = (_some(names) for names in (first.keys() - second, second.keys() - first))
        raise InputError(f"they hold other tensors: only the first has {here}, only the second {there}")
    for name, reference in first.items():
        try:
            distance.add(*map(_without_ones, (reference, second[name])))
        except ValueError as error:
            raise InputError(f"tensor '{name}': {error}") from error


def _some(names: Collection[str]) -> str:
    """The first of them, and how many more there are."""
    told = [*sorted(names)[:_TOLD], *([f"{len(names) - _TOLD} more"] if len(names) > _TOLD else [])]
    return ", ".join(told) or "nothing"


def _without_ones(value: Tensor) -> Tensor:
    """Latents of one picture have a dimension of batch in some programs."""
    while value.ndim > 3 and value.shape[0] == 1:
        value = value[0]
    return value


def _of_pictures(reference: tuple[Path, Reader], other: tuple[Path, Reader]) -> Comparison:
    meter, distance, count = QualityMeter(), Distance(), 0
    for here, there in zip_longest(_read(*reference), _read(*other)):
        if here is None or there is None:
            raise InputError(_shorter((reference if here is None else other)[0], count, "frames"))
        _check_size(reference[0], here, other[0], there)
        meter.add(here.rgb, there.rgb)
        distance.add(*(torch.from_numpy(frame.rgb) for frame in (here, there)))
        count += 1
    if not count:
        raise InputError(f"{reference[0]}: there is no frame in it")
    kinds = {reader.info.kind for _, reader in (reference, other)}
    notices = [f"{path}: {told}" for path, reader in (reference, other) for told in reader.warnings]
    kind: Literal["image", "video"] = "video" if "video" in kinds else "image"
    return Comparison(kind, distance.relative_l2, distance.largest, meter.result(), (*notices,))


def _check_size(first: Path, here: Frame, second: Path, there: Frame) -> None:
    if here.rgb.shape != there.rgb.shape:
        sizes = [f"{width}x{height}" for height, width, _ in (here.rgb.shape, there.rgb.shape)]
        raise InputError(f"{first} has {sizes[0]} pixels, and {second} has {sizes[1]}")


def _shorter(path: Path, count: int, what: str) -> str:
    return f"{path} has {count} {what}, and the other has more"


def _result(kind: Literal["latents", "tensors"], distance: Distance, notice: str | None) -> Comparison:
    return Comparison(kind, distance.relative_l2, distance.largest, None, () if notice is None else (notice,))


def _read(path: Path, values: Iterable[T]) -> Iterator[T]:
    """With what goes wrong said of this path."""
    with _blamed(path):
        yield from values


@contextmanager
def _blamed(path: Path) -> Iterator[None]:
    try:
        with blame_input():
            yield
    except InputError as error:
        raise error if str(path) in str(error) else InputError(f"{path}: {error}") from error
