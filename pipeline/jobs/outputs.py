"""Where results go: the name of every output, and what is refused before any work.

Names: an image's latents are ``<input name>.safetensors``, a video's the folder ``<input
name>.latents``; a picture or clip that is written is the source's name plus the kind's usual suffix, unless it ends so
already.
"""

from __future__ import annotations

import dataclasses
import os
import secrets
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tvae.pipeline import latents
from tvae.pipeline.caches.record import record_place
from tvae.pipeline.errors import InputError, TvaeError, UsageError
from tvae.pipeline.files.checked import is_name
from tvae.pipeline.files.letter_case import SamePlaces, folded
from tvae.pipeline.files.lock import one_writer
from tvae.pipeline.files.names import owned_name
from tvae.pipeline.files.new_folders import gone_if_empty
from tvae.pipeline.files.tar_members import Member
from tvae.pipeline.jobs.found import Found
from tvae.pipeline.jobs.job import Job, fills_shards
from tvae.pipeline.jobs.naming import named
from tvae.pipeline.jobs.other_programs import name_of_foreign
from tvae.pipeline.jobs.places import RealNames
from tvae.pipeline.latents.foreign import WRITTEN, ForeignLatents
from tvae.pipeline.media.formats import DEFAULT_SUFFIXES, WRITTEN_SUFFIXES, Kind, kinds_of, listed
from tvae.pipeline.stores import RemoteFile

__all__ = ["LONGEST_NAME", "Claims", "Item", "assign", "names_a_file", "results_folder", "why_closed", "writing_into"]

LATENTS_ENDINGS: dict[Kind, str] = {"image": latents.IMAGE_SUFFIX, "video": latents.VIDEO_SUFFIX}


LONGEST_NAME = 255
"""Bytes of a file's name, on the systems that people have."""


@dataclass(frozen=True, slots=True)
class Item:
    """One thing to work on and where its result goes."""

    source: Path
    index: int
    """Its place among the items of the run, from 0."""
    kinds: frozenset[Kind]
    """What it may turn out to be when it is opened."""
    folder: Path
    """That its output goes to."""
    name: str
    """Of the output, or, unless ``exact``, what that is made from."""
    exact: bool
    to_latents: bool
    problem: str | None = None
    foreign: ForeignLatents | None = None
    """See ``Found``."""
    below: PurePosixPath | None = None
    """For cache: the source's place below the output folder. ``folder`` and ``name`` are then those of its record."""
    within: Path = Path()
    """The source's folder, from the folder or pattern on that it was found by."""
    own: int | None = None
    """See ``Listed``."""
    member: Member | RemoteFile | None = None
    """See ``Found``."""
    beside: tuple[Member, ...] = ()
    """Texts that go to its folder as they are."""

    def origin(self) -> latents.SourceRecord:
        """What its results say that they were made from. `OSError` for a file that is not there."""
        if self.member is None:
            return latents.SourceRecord.of(self.source)
        version = self.member.identity if isinstance(self.member, RemoteFile) else None
        return latents.SourceRecord(self.source.name, self.member.size, self.member.mtime_ns, version)

    def output(self, kind: Kind) -> Path:
        """The result's path, now that ``kind`` is known; :class:`InputError` when the name given does not suit it."""
        return self.folder / self.output_name(kind)

    @property
    def record(self) -> Path:
        """Of a source that is cached: where that of its files is kept."""
        assert self.below is not None, "only caches have records"
        return self.folder / self.name

    def output_name(self, kind: Kind) -> str:
        """The last part of ``output``, in a tenth of the time."""
        if self.below is not None:
            return self.name
        if self.exact:
            allowed = (LATENTS_ENDINGS[kind],) if self.to_latents else WRITTEN_SUFFIXES[kind]
            if os.path.splitext(self.name)[1].lower() not in allowed:
                raise InputError(
                    f"{self.source} is {'an' if kind == 'image' else 'a'} {kind}, which cannot be written to "
                    f"{self.folder / self.name}; name an output ending in {allowed[0]}, or a folder"
                )
            return self.name
        ending = (LATENTS_ENDINGS if self.to_latents else DEFAULT_SUFFIXES)[kind]
        there = not self.to_latents and os.path.splitext(self.name)[1].lower() == ending
        return self.name if there else self.name + ending


class Claims:
    """Who writes what: no output is promised twice, and none is an input. Any thread may claim."""

    def __init__(self, items: Iterable[Item]) -> None:
        items = [item for item in items if item.problem is None]
        self._real = RealNames()
        self._owners: dict[str, Item] = {}
        self._claimed: dict[Kind, set[int]] = {"image": set(), "video": set()}
        self._inputs = {self._real(item.source) for item in items}
        self._alike = {folded(key): key for key in self._inputs}
        self._same = SamePlaces()
        self._inside: dict[str, bool] = {}
        for item in items:
            if item.exact and len(item.kinds) > 1:
                continue  # a name that was given suits one kind; which one it is shows later
            for kind in sorted(item.kinds):
                self._claim(item, kind)

    def claim(self, item: Item, kind: Kind) -> Path:
        """The item's output; :class:`UsageError` if it is another's or an input."""
        if item.index not in self._claimed[kind]:
            self._claim(item, kind)
        return item.output(kind)

    def _claim(self, item: Item, kind: Kind) -> None:
        try:
            key = self._known(self._real.inside(item.folder, item.output_name(kind)))
        except InputError as error:
            raise UsageError(str(error)) from error
        if key in self._inputs:
            raise UsageError(f"the output {item.output(kind)} is an input of this run; choose another output with -o")
        if self._is_inside(os.path.dirname(key)):
            output = item.output(kind)
            raise UsageError(f"the output {output} lies inside an input of this run; choose another output with -o")
        owner = self._owners.setdefault(key, item)
        if owner.index != item.index and owner.own != item.own and owner.source == item.source:
            raise UsageError(f"{item.source} is named twice, with different options; name it once")
        if owner.index != item.index:
            output = item.output(kind)
            raise UsageError(
                f"{owner.source} and {item.source} would both be written to {output}; "
                "name one of them in a run of its own, with another output (-o)"
            )
        self._claimed[kind].add(item.index)

    def _known(self, key: str) -> str:
        """The name of an input or another output instead, where that is the same file to the system."""
        known = self._alike.setdefault(folded(key), key)
        return known if known == key or self._same(known, key) else key

    def _is_inside(self, folder: str) -> bool:
        """Is it an input, or below one?"""
        if folder not in self._inside:
            above = os.path.dirname(folder)
            self._inside[folder] = folder in self._inputs or (above != folder and self._is_inside(above))
        return self._inside[folder]


def assign(found: Iterable[Found], job: Job) -> list[Item]:
    """Gives every input its output and checks that the outputs' folders can be written to; one that cannot is a problem
    of its items.

    Raises :class:`UsageError`: an ``-o`` that suits no result of this operation, no folder that can be written to.
    """
    found = list(found)
    to_latents = job.operation == "encode"
    caching = job.operation == "cache"
    one_file = not caching and len(found) > 0 and job.output is not None and names_a_file(job.output, to_latents)
    if one_file and job.output is not None and len(found) > 1:
        if not _is_plain_folder(job.output):
            raise UsageError(
                f"-o {job.output} names one result, and there are {len(found)} inputs; name a folder (-o {job.output}/)"
            )
        one_file = False
    output = Path(job.output or ".")
    folders = {below: output / below for below in {one.below for one in found}}
    items = []
    for index, (one, (name, kinds)) in enumerate(zip(found, _identities(found, job), strict=True)):
        problem, place = one.problem, None if job.naming is None else named(job.naming, one.below, name)
        if place is not None and os.pardir in place.parts:  # the stem of "...png" is ".."
            problem, place = f"{one.path}: naming leads out of the output folder; give it another name", None
        if one_file:
            folder, name = output.parent, output.name
        elif place is None or problem is not None:
            folder = folders[one.below]
        else:
            folder, name = folders.setdefault(Path(place.parent), output / place.parent), place.name
        below = None
        if caching and problem is None:
            below, record = PurePosixPath((one.below / name).as_posix()), record_place(output, one.below / name)
            folder, name = record.parent, record.name
        beside = one.beside if job.naming is None else ()
        end = (problem, one.foreign, below, one.below, one.own, one.member, beside)
        items.append(Item(one.path, index, kinds, folder, name, one_file, to_latents, *end))
    used = sorted({item.folder for item in items if item.problem is None})
    closed = {folder: problem for folder in used if (problem := why_closed(folder)) is not None}
    if closed and len(closed) == len(used):
        raise UsageError(closed[used[0]])
    return [
        dataclasses.replace(item, problem=problem)
        if item.problem is None and (problem := closed.get(item.folder) or _too_long(item, job)) is not None
        else item
        for item in items
    ]


def _is_plain_folder(output: str) -> bool:
    """Is it a folder for results, though its name ends as that of a clip's latents, which are a folder, too?"""
    if not output.endswith(("/", os.sep)):
        return False
    return not (os.path.isdir(output) and any(map(latents.is_part_name, os.listdir(output))))


def _too_long(item: Item, job: Job) -> str | None:
    """Why no file can have the name that an item's result, or its record, would get from its source's."""
    if item.exact or (item.below is not None and fills_shards(job)):
        return None
    if item.below is not None:
        if len(os.fsencode(item.name)) <= LONGEST_NAME:
            return None
        return f"{item.source}: the name of its record would have more than {LONGEST_NAME} bytes; give it a shorter one"
    if max((len(os.fsencode(item.output_name(kind))) for kind in item.kinds), default=0) <= LONGEST_NAME:
        return None
    return f"{item.source}: the name of its result would have more than {LONGEST_NAME} bytes; name one with -o FILE"


def _identities(found: list[Found], job: Job) -> list[tuple[str, frozenset[Kind]]]:
    """Each source's name and what it may be. Latents say what their source was called; where several of a run have the
    same source, their own names tell them apart. Those of other programs have no other name than their own."""
    if job.operation != "decode":
        return [(one.name, kinds_of(os.path.splitext(one.path.name)[1])) for one in found]
    sources = [_source_of(one) for one in found]
    shared = Counter((one.below, name) for one, (name, _) in zip(found, sources, strict=True))
    return [
        (name if one.foreign is not None or shared[one.below, name] == 1 else one.stem, kinds)
        for one, (name, kinds) in zip(found, sources, strict=True)
    ]


def _source_of(found: Found) -> tuple[str, frozenset[Kind]]:
    """What latents say of their source; damaged ones count as what they look like and fail when their turn comes."""
    folder = found.path.is_dir() or found.path.suffix == latents.VIDEO_SUFFIX
    looks: frozenset[Kind] = frozenset({"video" if folder else "image"})
    if found.problem is not None:
        return found.name, looks
    if isinstance(found.member, RemoteFile):  # which is not fetched for its name: it is that, as encode gives it
        return found.stem, frozenset({"video"} if found.member.is_folder else {"image", "video"})
    if found.foreign is not None:
        return name_of_foreign(found.foreign), frozenset({"image", "video"})
    try:
        name, kind = latents.source_of(found.path)
    except TvaeError:
        return found.stem, looks
    return (name if is_name(name) else found.stem), frozenset({kind})


def names_a_file(output: str, to_latents: bool) -> bool:
    """Is a job's output one file, not a folder? Raises UsageError for one that is not written."""
    path = Path(output)
    suffix = path.suffix.lower()
    if to_latents:
        if suffix == LATENTS_ENDINGS["video"]:
            return True
        allowed: tuple[str, ...] = (LATENTS_ENDINGS["image"],)
    else:
        allowed = WRITTEN_SUFFIXES["image"] + WRITTEN_SUFFIXES["video"]
    if output.endswith(("/", os.sep)) or path.is_dir():
        return False
    if suffix in allowed:
        return True
    if to_latents and suffix in WRITTEN:
        raise UsageError(
            f"encode writes {output} in no such form: name a folder or a {allowed[0]} file, then tvae convert"
        )
    if listed(suffix):
        raise UsageError(f"cannot write {output}: name a folder, or a file ending in {', '.join(allowed)}")
    return False


def results_folder(job: Job) -> Path:
    """The folder that all results of a job lie in or below."""
    output = job.output or "."
    is_file = job.operation != "cache" and names_a_file(output, job.operation == "encode")
    return Path(output).parent if is_file else Path(output)


@contextmanager
def writing_into(folder: Path) -> Iterator[None]:
    """Hold a lock in a folder of results that names this process. If it is killed, the next run knows by that which
    temporary files are its own: pictures have no locks of their own, for speed. Raises OutputError."""
    with gone_if_empty(folder), one_writer(folder / owned_name(secrets.token_hex(6)), 0):
        yield


def why_closed(folder: Path) -> str | None:
    """Why nothing can be written to a folder, None if something can. It is tried, on the nearest folder that exists:
    neither permission bits (read-only mounts, root) nor the making of a file (full disks) tell alone."""
    existing = folder
    while not os.path.lexists(existing) and existing != existing.parent:
        existing = existing.parent
    try:
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(b"\0")
    except OSError as error:
        return f"cannot write to {folder}: {error.strerror or error} ({existing})"
    return None
