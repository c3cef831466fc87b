"""Everything in a folder that tvae wrote, read whole: latents, caches, and what a manifest has lines of."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from tvae.pipeline.batch.manifest_lines import read_manifest
from tvae.pipeline.caches.shards.verify import shard_folders, verify_shards
from tvae.pipeline.caches.verify import recorded_files, records_below, verify_record
from tvae.pipeline.errors import InputError
from tvae.pipeline.files.content_checksum import of_file
from tvae.pipeline.latents import source_of
from tvae.pipeline.latents.verify import MadeBy, Verdict, found_below, not_read, verify_latents

__all__ = ["made_by", "verdicts"]


def made_by(vae: str, allow_pickle: bool) -> MadeBy:
    """Facts of the VAE that latents should be of. Raises UsageError where it cannot be found."""
    from tvae.pipeline.models.load import locate_vae, values_of
    from tvae.pipeline.models.space import space_of

    found = locate_vae(vae, allow_pickle=allow_pickle)
    return MadeBy(found.class_name, found.weights_sha256, values_of(found), space_of(found).to_json())


def verdicts(named: Path, sources: Path | None = None, vae: MadeBy | None = None) -> Iterator[Verdict]:
    """Of a file or a folder. sources: the folder of the sources, which are to be as they were. Raises InputError for
    what is neither latents nor a folder."""
    recorded, seen = recorded_files(named) | {*shard_folders(named)}, set[Path]()
    for path in found_below(named):
        if path not in recorded:
            seen.add(path)
            below = path.parent.relative_to(named) if path != named and named.is_dir() else Path()
            yield verify_latents(path, None if sources is None else _source_of(path, sources / below), vae)
    for root, record in records_below(named):
        yield verify_record(root, record, sources, vae)
    yield from verify_shards(named, sources, vae)
    yield from _of_manifests(named, recorded | seen)


def _source_of(path: Path, folder: Path) -> Path | None:
    """The file that latents name as their source, in this folder; none for latents that cannot be read."""
    try:
        return folder / Path(source_of(path)[0]).name
    except InputError:  # which verify_latents tells
        return None


def _of_manifests(folder: Path, known: set[Path]) -> Iterator[Verdict]:
    """What has a line in a manifest of this very folder, and is none of those that are known, or is not there."""
    if not folder.is_dir():
        return
    for manifest in (folder / "manifest.jsonl", *sorted(folder.glob("manifest-*-of-*.jsonl"))):
        try:
            lines = read_manifest(manifest)
        except OSError as error:
            yield Verdict(manifest, "unreadable", f"it cannot be read ({error.strerror or error})")
            continue
        for name, line in lines.items():
            path = folder / name
            if path not in known and _is_below(name):
                yield _of_line(path, line.get("sha256"), str(line.get("source")))


def _of_line(path: Path, checksum: object, source: str) -> Verdict:
    try:
        if path.is_dir():
            return Verdict(path, "damaged", "it is a folder of no latents; run the same job again")
        if of_file(path) != checksum:
            return Verdict(path, "damaged", "its content is not what was written; run the same job again")
    except FileNotFoundError:
        return Verdict(path, "incomplete", f"it has gone, which was made of {source}; run the same job again")
    except OSError as error:
        return not_read(path, error)
    return Verdict(path, "fine")


def _is_below(name: str) -> bool:
    """A line is data: no path out of its folder."""
    parts = PurePosixPath(name)
    return not parts.is_absolute() and ".." not in parts.parts and ":" not in name and "\\" not in name
