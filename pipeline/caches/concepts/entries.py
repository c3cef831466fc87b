"""Which images concepts have, in OneTrainer's order, and the numbers of their entries.

Read from ``CollectPaths`` and ``DiskCache`` of mgds.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tvae.pipeline.caches.concepts.concept import Concept
from tvae.pipeline.errors import UsageError

__all__ = ["ALL", "Entry", "entries_of"]

ALL = "aggregate.pt"
"""Beside the entries of a folder: what is small of all of them. A folder that has it counts as complete."""

_SUFFIXES = (".bmp", ".jpg", ".jpeg", ".png", ".tif", ".tiff", ".webp", ".avif")
_NO_IMAGES = ("-masklabel", "-condlabel")
"""How names end, without the suffix, of what belongs to another image."""


@dataclass(frozen=True)
class Entry:
    """One image in one of its variations."""

    concept: Concept
    path: str
    """Of the image, as the trainer puts it together."""
    index: int
    """Among all images of a training, or of its validation. Chance depends on it."""
    number: int
    """Among the images of its folder of the cache."""
    variation: int

    @property
    def below(self) -> str:
        """The image's place below the concept's folder."""
        return Path(os.path.relpath(self.path, self.concept.path)).as_posix()

    @property
    def folder(self) -> PurePosixPath:
        """Below the cache."""
        return PurePosixPath("image", self.concept.key, f"variation-{self.variation}")

    @property
    def place(self) -> PurePosixPath:
        """Of the file, below the cache."""
        return self.folder / f"{self.number}.pt"


def entries_of(concepts: Sequence[Concept]) -> list[Entry]:
    """Those that are trained on first. Raises UsageError for folders that cannot be listed."""
    found = []
    for validates in (False, True):
        numbers: dict[str, int] = {}
        variations: dict[str, int] = {}  # concepts that the trainer cannot tell apart have those of the first
        index = 0
        for concept in (one for one in concepts if one.validates == validates):
            for path in _images(concept):
                key = concept.key
                for variation in range(variations.setdefault(key, concept.variations)):
                    found.append(Entry(concept, path, index, numbers.get(key, 0), variation))
                numbers[key] = numbers.get(key, 0) + 1
                index += 1
    both = {one.concept.key for one in found if one.concept.validates} & {
        one.concept.key for one in found if not one.concept.validates
    }
    if both:
        path = next(one.concept.path for one in found if one.concept.key in both)
        raise UsageError(
            f"OneTrainer cannot tell the cache of a concept that is trained on from that of one that validates: both "
            f"have {path} and one seed; make one of them again in OneTrainer"
        )
    return found


def _images(concept: Concept) -> list[str]:
    if not os.path.isdir(concept.path):
        raise UsageError(
            f"the folder of a concept, {concept.path or '(none)'}, is not there; OneTrainer looks for it from its own "
            "folder on: run tvae there, or type the whole path in OneTrainer"
        )
    try:
        names = sorted(_files(concept.path, concept.subfolders))
    except OSError as error:
        raise UsageError(f"cannot list the folder {error.filename}: {error.strerror}") from error
    return [name for name in names if _is_image(name)]


def _is_image(name: str) -> bool:
    stem, suffix = os.path.splitext(name)
    return suffix.lower() in _SUFFIXES and not stem.endswith(_NO_IMAGES)


def _files(folder: str, subfolders: bool) -> Iterator[str]:
    """In no order. It does not recurse: folders may be deep."""
    waiting: list[tuple[str, tuple[str, ...]]] = [(folder, ())]  # each with the folders that it is in, without links
    while waiting:
        here, above = waiting.pop()
        real = os.path.realpath(here)
        if real in above:
            raise UsageError(f"{here} is a link to a folder that it lies in; remove it")
        for name in os.listdir(here):
            path = os.path.join(here, name)
            if os.path.isfile(path):
                yield path
            elif subfolders and not name.startswith(".") and os.path.isdir(path):
                waiting.append((path, (*above, real)))
