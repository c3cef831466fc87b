"""Reads caches whole, and says whether their files are what was written, and still of their source and VAE."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tvae.pipeline.caches.record import FOLDER, CacheRecord, place_of_source, read_record
from tvae.pipeline.errors import InputError
from tvae.pipeline.files.content_checksum import of_file
from tvae.pipeline.latents.verify import MadeBy, Verdict, not_read

__all__ = ["places_in", "recorded_files", "records_below", "verify_record"]


def records_below(folder: Path) -> Iterator[tuple[Path, Path]]:
    """Output folders of caches in a folder and below it, each with the places of its records, in order. Links are not
    followed."""
    for here, folders, _ in os.walk(folder):
        folders.sort()
        if FOLDER in folders:
            for place in places_in(Path(here)):
                yield Path(here), place
        folders[:] = [name for name in folders if not name.startswith(".")]


def places_in(root: Path) -> list[Path]:
    """Of the records of all sources whose caches lie in a folder, in order of name."""
    return sorted((root / FOLDER).rglob("*.json"))


def recorded_files(folder: Path) -> set[Path]:
    """Files of caches in a folder and below it that there are records of."""
    found = set()
    for root, place in records_below(folder):
        with suppress(InputError):  # which verify_record tells
            found |= {root / file.file for file in read_record(place).files}
    return found


def verify_record(root: Path, place: Path, sources: Path | None = None, made_by: MadeBy | None = None) -> Verdict:
    """All files of one record. sources: the folder of the sources, which are to be as they were; made_by: the VAE that
    the files should be of."""
    try:
        record = read_record(place)
    except InputError as error:
        return Verdict.of_error(place, error)
    shown = root / record.files[0].file if record.files else place
    for file in record.files:
        path = root / file.file
        try:
            if of_file(path) != file.checksum:
                return Verdict(
                    path, "damaged", "its content is not what was written; remove it, and run the same command again"
                )
        except OSError as error:
            return not_read(path, error, "; run again")
    if not record.complete:
        return Verdict(shown, "incomplete", "pieces are missing: the run was interrupted, or is running; run it again")
    changed = _changed(record, None if sources is None else sources / place_of_source(root, place, record), made_by)
    return Verdict(shown, "fine") if changed is None else Verdict(shown, "stale", changed)


def _changed(record: CacheRecord, source: Path | None, made_by: MadeBy | None) -> str | None:
    if source is not None:
        try:
            if not record.of_source(source):
                return f"its source {source} has changed"
        except OSError as error:
            return f"its source {source} cannot be read ({error.strerror or error})"
    vae = record.vae
    if made_by is not None and not made_by.made(vae):
        return f"it was made by another VAE: '{vae.id}' ({vae.class_name}, weights {vae.weights_sha256[:12]})"
    return None
