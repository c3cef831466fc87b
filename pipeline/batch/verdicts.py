"""Everything in a folder that tvae wrote, read whole: latents, caches, and what a manifest has lines of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from tvae.pipeline.batch.manifest_lines import is_manifest, read_manifest
from tvae.pipeline.caches.record import recorded_files, records_below, verify_record
from tvae.pipeline.caches.webdataset import verify_shards
from tvae.pipeline.errors import InputError
from tvae.pipeline.files.content_checksum import of_file
from tvae.pipeline.latents import source_of
from tvae.pipeline.latents.verify import MadeBy, Verdict, found_below, not_read, verify_latents
from tvae.pipeline.stores import RemotePath

__all__ = ["Wanted", "gone", "is_inside", "made_by", "once", "verdict_by_line", "verdicts", "wants_all"]

Wanted = Callable[[Path], bool]
"""Is what lies there to be read? Asked once of each."""


def made_by(vae: str, allow_pickle: bool) -> MadeBy:
    """Facts of the VAE that latents should be of. Raises UsageError where it cannot be found."""
    from tvae.pipeline.models.load import locate_vae, values_of
    from tvae.pipeline.models.space import space_of

    found = locate_vae(vae, allow_pickle=allow_pickle)
    return MadeBy(found.class_name, found.weights_sha256, values_of(found), space_of(found).to_json())


def wants_all(_path: Path) -> bool:
    """``Wanted`` by who reads everything."""
    return True


def once() -> Wanted:
    """Wants what it was not asked for before, as in a folder that another one lies in. Of what is elsewhere all: URLs
    are shown without their queries, and so may look alike."""
    before: set[Path] = set()

    def new(path: Path) -> bool:
        if isinstance(path, RemotePath):
            return True
        place = path.resolve()
        if place in before:
            return False
        before.add(place)
        return True

    return new


def verdicts(
    named: Path, sources: Path | None = None, vae: MadeBy | None = None, wanted: Wanted = wants_all
) -> Iterator[Verdict]:
    """Of a file or a folder. sources: the folder of the sources, which are to be as they were. Raises InputError for
    what is neither latents nor a folder."""
    recorded, seen = recorded_files(named), set[Path]()
    for path in found_below(named):
        if path not in recorded:
            seen.add(path)
            if not wanted(path):
                continue
            below = path.parent.relative_to(named) if path != named and named.is_dir() else Path()
            yield verify_latents(path, None if sources is None else _source_of(path, sources / below), vae)
    for root, record in records_below(named):
        if wanted(record):
            yield verify_record(root, record, sources, vae)
    yield from verify_shards(named, sources, vae, wanted)
    yield from _of_manifests(named, recorded | seen, wanted)


def _source_of(path: Path, folder: Path) -> Path | None:
    """The file that latents name as their source, in this folder; none for latents that cannot be read."""
    try:
        return folder / Path(source_of(path)[0]).name
    except InputError:  # which verify_latents tells
        return None


def _of_manifests(folder: Path, known: set[Path], wanted: Wanted) -> Iterator[Verdict]:
    """What has a line in a manifest of this very folder, and is none of those that are known, or is not there."""
    if not folder.is_dir():
        return
    for manifest in sorted(path for path in folder.glob("manifest*.jsonl") if is_manifest(path.name)):
        try:
            lines = read_manifest(manifest)
        except OSError as error:
            if wanted(manifest):
                yield Verdict(manifest, "unreadable", f"it cannot be read ({error.strerror or error})")
            continue
        for name, line in lines.items():
            path = folder / name
            if path not in known and is_inside(name) and wanted(path):
                yield verdict_by_line(path, line)


def verdict_by_line(path: Path, line: Mapping[str, Any]) -> Verdict:
    """Of an output by its line in the manifest."""
    try:
        if path.is_dir():
            return Verdict(path, "damaged", "it is a folder of no latents; run the same job again")
        if of_file(path) != line.get("sha256"):
            return Verdict(path, "damaged", "its content is not what was written; run the same job again")
    except FileNotFoundError:
        return gone(path, line)
    except OSError as error:
        return not_read(path, error)
    return Verdict(path, "fine")


def gone(path: Path, line: Mapping[str, Any]) -> Verdict:
    """Of an output that has a line and is not there."""
    return Verdict(path, "incomplete", f"it has gone, which was made of {line.get('source')}; run the same job again")


def is_inside(name: str) -> bool:
    """Is an output's name one of a file in the manifest's folder? A line is data: no path out of its folder."""
    parts = PurePosixPath(name)
    return not parts.is_absolute() and ".." not in parts.parts and ":" not in name and "\\" not in name
