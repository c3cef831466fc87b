"""From what the user names (files, folders, patterns, a list) to the single things to work on."""

from __future__ import annotations

import codecs
import glob
import os
import re
import string
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Literal

from tvae.pipeline import latents as latent_files
from tvae.pipeline.errors import UsageError
from tvae.pipeline.files.checked import says_utf16, text_in
from tvae.pipeline.files.tar_members import SUFFIX
from tvae.pipeline.jobs.archives import Archives, is_archive, no_media
from tvae.pipeline.jobs.found import Found
from tvae.pipeline.jobs.job import Job, fills_shards
from tvae.pipeline.jobs.places import RealNames
from tvae.pipeline.jobs.remote.sources import Sources
from tvae.pipeline.jobs.remote.uploads import Uploads
from tvae.pipeline.latents.foreign import SUFFIXES
from tvae.pipeline.media import formats
from tvae.pipeline.stores import RemoteFile, is_url, shown_path

__all__ = ["expand", "fixed_part", "mirrored_path", "names_in", "read_list"]

Sought = Literal["media", "latents", "all latents"]
"""What is looked for in folders. All latents: those of other programs, too."""
_ESCAPED = re.compile(r"\[([*?[])\]")
"""A letter that is none of a pattern, as ``glob.escape`` writes it."""


@dataclass(frozen=True)
class _Search:
    sought: Sought
    recursive: bool
    output: Path | None
    archives: Archives | None
    """None: they are not gone into."""
    sources: Sources
    """What URLs lead to."""


def expand(job: Job, uploads: Uploads | None = None) -> list[Found]:
    """What the job's inputs lead to, in the order named, folders sorted by name, each once; for decode, latents.

    The output folder is not searched, so that a run does not take its own results for inputs; uploads: where it is
    elsewhere. Raises
    :class:`UsageError` for an input that does not exist and a pattern that nothing matches; in a list they are problems
    of their own.
    """
    sources = Sources(_sought(job), job.recursive, uploads)
    output = Path(job.output) if job.output else None
    search = _Search(_sought(job), job.recursive, output, _archives(job), sources)
    if len(job.inputs) == 1 and not job.listed and not glob.has_magic(job.inputs[0]):  # whose members are there once
        return [*_expand_one(job.inputs[0], search)]
    found: dict[tuple[str, Path, str, int | None, str | None], Found] = {}
    real = RealNames()
    for one in _all(job, search):
        url = one.member.place.key if isinstance(one.member, RemoteFile) else None
        found.setdefault((real(one.path), one.below, one.name, one.own, url), one)
    return list(found.values())


def _all(job: Job, search: _Search) -> Iterator[Found]:
    for name in job.inputs:
        yield from _expand_one(name, search)
    search.sources.prefetch(one.name for one in job.listed if is_url(one.name))
    for listed in job.listed:
        try:
            for one in _expand_one(listed.name, search):
                yield one if listed.own is None else replace(one, own=listed.own)
        except UsageError as error:
            path = shown_path(listed.name) if is_url(listed.name) else Path(listed.name)
            yield Found(path, Path(), path.name or listed.name, problem=str(error), own=listed.own)


def read_list(name: str) -> list[str]:
    """Names from a text file, as ``names_in`` finds them (``-``: standard input).

    Raises :class:`UsageError` if the file cannot be read.
    """
    try:
        if name == "-":
            return names_in(*_standard_input())
        with open(name, "rb", buffering=0) as file:
            return names_in(_whole(file))
    except OSError as error:
        raise UsageError(f"cannot read the list of inputs {name}: {error.strerror or error}") from error


def _standard_input() -> tuple[bytes, str]:
    """And its encoding."""
    if sys.stdin is None:
        raise UsageError("cannot read the list of inputs -: standard input is closed")
    return _whole(sys.stdin.buffer), sys.stdin.encoding


def _whole(file: IO[bytes]) -> bytes:
    """Up to the first zero byte, which only a list in UTF-16 has: a device, or a film by mistake, is not read whole."""
    parts = list[bytes]()
    while (part := file.read(1 << 20)) and (b"\0" not in part or says_utf16(parts[0] if parts else part)):
        parts.append(part)
    return b"".join([*parts, part])


def names_in(data: bytes, encoding: str = "utf-8") -> list[str]:
    """Of a list, with names as the system gives them, whatever their bytes: its lines without blank ones and those that
    start with ``#``. One with the mark of UTF-16 is in that. UsageError for zero bytes, which no name has."""
    try:
        if says_utf16(data):
            text = text_in(data)
        else:
            text = data.removeprefix(codecs.BOM_UTF8).decode(encoding, errors="surrogateescape")
    except ValueError as error:
        raise UsageError(f"a list of inputs is a text, and this one is none: {error}") from error
    if "\0" in text:
        raise UsageError("a list of inputs has one name a line, and this one has zero bytes; leave -print0 out")
    lines = (line.strip(string.whitespace) for line in text.split("\n"))  # names may have Unicode's other spaces
    return [line for line in lines if line and not line.startswith("#")]


def _sought(job: Job) -> Sought:
    if job.operation != "decode":
        return "media"
    return "latents" if job.latents_space is None else "all latents"


def _archives(job: Job) -> Archives | None:
    """None: trainers read no pictures out of archives, and latents in one are not looked for."""
    if fills_shards(job):
        return Archives(shared=True)
    return Archives() if job.operation in ("encode", "roundtrip") else None


def _is_sought(path: Path, sought: Sought) -> bool:
    """Latents, where those are sought; a folder may be one clip's."""
    foreign = sought == "all latents" and path.suffix.lower() in SUFFIXES and path.is_file()
    return sought != "media" and (foreign or latent_files.is_latents(path))


def _expand_one(name: str, search: _Search) -> Iterator[Found]:
    if is_url(name):
        yield from search.sources.found(name)
        return
    path = Path(name)
    if os.path.exists(path):
        if search.sought != "media" and path.name == "index.json":
            path = path.parent
        yield from _expand_path(path, None, search)
    elif search.archives is not None and (found := search.archives.member(name)) is not None:
        yield found
    elif glob.has_magic(name):
        matches = sorted(glob.glob(name, recursive=True))
        if not matches:
            raise UsageError(f"no file matches {name}")
        start = fixed_part(path)
        for match in matches:
            yield from _expand_path(Path(match), mirrored_path(Path(match), start), search)
    else:
        raise UsageError(f"{name} does not exist")


def _expand_path(path: Path, below: Path | None, search: _Search) -> Iterator[Found]:
    if not path.is_dir() or _is_sought(path, search.sought):
        lies = Path(path.resolve().name) if path.name in ("", os.pardir) else below or Path(path.name)
        archived = is_archive(path.name)
        if archived and search.archives is not None:
            yield from search.archives.members(path, lies)
        else:
            problem = (
                f"{path}: archives are inputs of encode, roundtrip and cache --for webdataset; unpack it"
                if archived
                else None
            )
            yield Found(path, lies.parent, lies.name, problem=problem)
        return
    prefix = below or Path()
    members = [*_members(path, prefix, search)]
    if not members:
        what = "images or videos" if search.sought == "media" else "latents"
        hint = "" if search.recursive else "; --recursive looks into subfolders"
        members = [Found(path, prefix.parent, prefix.name, problem=f"no {what} in this folder{hint}")]
    yield from members


def _members(folder: Path, below: Path, search: _Search) -> Iterator[Found]:
    """What there is in a folder, and its place below ``below``. A folder that may not be read is one problem."""
    try:
        with os.scandir(folder) as listed:
            entries = sorted(listed, key=lambda entry: os.path.normcase(entry.name))
    except OSError as error:
        yield Found(
            folder,
            below.parent,
            below.name,
            problem=f"this folder cannot be read: {error.strerror or error}",
        )
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        path = folder / entry.name
        if _is_sought(path, search.sought):
            yield Found(path, below, entry.name)
        elif _is_folder(entry):
            ours = path.suffix == latent_files.VIDEO_SUFFIX or _same(path, search.output)
            if search.recursive and not ours and not entry.is_symlink():
                yield from _members(path, below / entry.name, search)
        elif search.archives is not None and entry.name.lower().endswith(SUFFIX):  # packed ones may be anything
            members = search.archives.members(path, below / entry.name)
            yield from (one for one in members if one.problem != no_media(path))
        elif _is_named_so(entry.name, search.sought):
            yield Found(path, below, entry.name)


def _is_named_so(name: str, sought: Sought) -> bool:
    """What is no file, such as a link that leads nowhere, counts: reading it tells what is wrong."""
    suffix = os.path.splitext(name)[1]
    if sought == "media":
        return formats.listed(suffix)
    return suffix in (latent_files.IMAGE_SUFFIX, latent_files.VIDEO_SUFFIX)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """A link that leads nowhere is none: reading it tells what is wrong."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def fixed_part(pattern: Path) -> Path:
    """The leading folders of a pattern that hold no wildcard."""
    fixed = Path()
    for folder in pattern.parts[:-1]:
        if glob.has_magic(_ESCAPED.sub("", folder)):
            break
        fixed /= _ESCAPED.sub(r"\1", folder)
    return fixed


def mirrored_path(path: Path, start: Path) -> Path:
    """Return the part of a path that its output repeats: from ``start`` on, and only what follows the last ``..``,
    which would lead out of the output folder."""
    parts = path.relative_to(start).parts
    ups = [number for number, part in enumerate(parts, 1) if part == os.pardir]
    return Path(*parts[ups[-1] :]) if ups else Path(*parts)


def _same(path: Path, other: Path | None) -> bool:
    return other is not None and path.resolve() == other.resolve()
