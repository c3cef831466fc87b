"""Reads shards whole, and says whether they are what was written, and still of their sources and VAE."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from tvae.pipeline.caches.shards import FORMS
from tvae.pipeline.caches.shards.origin import Origin
from tvae.pipeline.caches.shards.record import (
    FOLDER,
    OriginRecord,
    SampleRecord,
    ShardRecord,
    read_record,
    record_places,
    unfinished,
)
from tvae.pipeline.errors import InputError
from tvae.pipeline.files.content_checksum import of_file
from tvae.pipeline.files.tar_members import SUFFIX, Member, tar_members
from tvae.pipeline.latents.verify import MadeBy, Verdict, not_read

__all__ = ["shard_folders", "verify_shards"]


def verify_shards(
    folder: Path, sources: Path | None, made_by: MadeBy | None, wanted: Callable[[Path], bool]
) -> Iterator[Verdict]:
    """Of all shards in a folder and below it, in order. Links are not followed. sources: the folder of the sources,
    which are to be as they were; made_by: the VAE that the shards should be of; wanted: is what lies there to be read?
    It is asked once of each."""
    for root in shard_folders(folder):
        yield from _verify(root, None if sources is None else _Sources(sources), made_by, wanted)


def shard_folders(folder: Path) -> Iterator[Path]:
    """Those among a folder and the ones below it that hold shards. An index of shards has the name of one of latents:
    that these are no latents is for the caller to know."""
    for here, folders, _ in os.walk(folder):
        folders.sort()
        if FOLDER in folders:
            yield Path(here)
        folders[:] = [name for name in folders if not name.startswith(".")]


def _verify(
    root: Path, sources: _Sources | None, made_by: MadeBy | None, wanted: Callable[[Path], bool]
) -> Iterator[Verdict]:
    listed: list[ShardRecord] = []
    whole = not unfinished(root).exists()
    for place in record_places(root):
        try:
            record = read_record(place)
        except InputError as error:
            if wanted(place):
                yield Verdict.of_error(place, error)
            continue
        path = root / record.file.file
        reads = wanted(path)
        try:
            record = record.now(root)
            if reads and of_file(path) != record.file.checksum:
                yield Verdict(path, "damaged", "its content is not what was written; remove it, and run again")
                continue
        except OSError as error:
            if reads:
                yield not_read(path, error, "; run again")
            continue
        listed.append(record)
        if reads:
            changed = _changed(record, sources, made_by)
            yield Verdict(path, "fine") if changed is None else Verdict(path, "stale", changed)
    if not whole and wanted(root):
        yield Verdict(root, "incomplete", "a run was interrupted, or is running; run the same command again")
    elif whole and listed:
        yield from (verdict for verdict in _verify_index(root, listed) if wanted(verdict.path))


def _verify_index(root: Path, listed: list[ShardRecord]) -> Iterator[Verdict]:
    """Of a run that was not interrupted. Nothing is said of an index that is right, nor of a form without any."""
    form = FORMS.get(listed[0].trainer)
    if form is None or form.index is None or form.index_name is None:
        return
    path = root / form.index_name
    wanted = form.index([(one.file.file, one.file.bytes, len(one.samples), one.settings) for one in listed])
    try:
        if path.read_bytes() != wanted:
            yield Verdict(path, "damaged", "it does not list the shards that are there; run the same command again")
    except OSError as error:
        yield not_read(path, error, "; run again")


def _changed(record: ShardRecord, sources: _Sources | None, made_by: MadeBy | None) -> str | None:
    if sources is not None:
        found = [reason for one in record.samples if (reason := sources.changed(one)) is not None]
        if found:
            return found[0] + (f" (and of {len(found) - 1} more samples)" if len(found) > 1 else "")
    vae = record.vae
    if made_by is not None and not made_by.made(vae):
        return f"it was made by another VAE: '{vae.id}' ({vae.class_name}, weights {vae.weights_sha256[:12]})"
    return None


class _Sources:
    """The folder of the sources, and the archives in it, of which the last one is known."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._archive: Path | None = None
        self._members: dict[str, Member] = {}

    def changed(self, one: SampleRecord) -> str | None:
        """Why a sample is stale; None: it is not."""
        place = PurePosixPath(one.place)
        for record in (one.origin, *one.texts.values()):
            name = place.with_name(record.source.name)
            try:
                if not self._stands(place if record is one.origin else name, record):
                    return f"{self._folder / name}, which it holds, has changed"
            except (OSError, InputError) as error:
                why = error.strerror if isinstance(error, OSError) else None
                return f"{self._folder / name}, which it holds, cannot be read ({why or error})"
        return None

    def _stands(self, place: PurePosixPath, record: OriginRecord) -> bool:
        path = self._folder / place
        archive = next((one for one in self._archives(place) if one.is_file()), None)
        if archive is None or path.exists():
            return Origin(path).stands(record)
        if archive != self._archive:
            self._members = {member.name: member for member in tar_members(archive)}
            self._archive = archive
        inside = path.relative_to(archive.with_suffix("")).as_posix()
        if inside not in self._members:
            raise InputError(f"{archive} has no such file")
        return Origin(path, self._members[inside]).stands(record)

    def _archives(self, place: PurePosixPath) -> Iterator[Path]:
        """Those that a place may lie in."""
        return (self._folder / f"{above}{SUFFIX}" for above in place.parents if above.name)
