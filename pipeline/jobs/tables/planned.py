"""What a data set comes to: a table for each bucket of each of its folders, and the items that fill it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tvae.pipeline.caches import Architecture
from tvae.pipeline.caches.request import CUTS
from tvae.pipeline.caches.spec import Size
from tvae.pipeline.caches.tables.fingerprint import in_order, library_version, table_of
from tvae.pipeline.caches.tables.rows import Row, buckets_of, rows_of
from tvae.pipeline.caches.tables.settings import read_settings
from tvae.pipeline.caches.tables.videos import clip_length
from tvae.pipeline.errors import UsageError
from tvae.pipeline.jobs.job import Job
from tvae.pipeline.jobs.outputs import Item
from tvae.pipeline.media.formats import Kind

__all__ = ["DataSet", "TableItems", "data_set"]


@dataclass(frozen=True)
class TableItems:
    """A bucket. rows: by their places, in the order of the table. library: that made the fingerprint, its version.
    length: frames of its clips."""

    root: Path
    size: Size
    length: int
    fingerprint: str
    library: str
    rows: dict[PurePosixPath, Row]
    items: list[Item]

    def holds_video(self, item: Item) -> bool:
        """Is this one taken for a video?"""
        assert item.below is not None, "an item of a cache has a place"
        return self.rows[item.below].is_video

    @property
    def videos(self) -> bool:
        """Are there any?"""
        return any(row.is_video for row in self.rows.values())


@dataclass(frozen=True)
class DataSet:
    """left_out: files that the trainer leaves out, each with the reason and the folder of its caches."""

    tables: list[TableItems]
    left_out: list[tuple[Path, str, Path]]


def data_set(job: Job, architecture: Architecture) -> DataSet:
    """Looks at every file's header. Raises UsageError for what cannot be cached."""
    _check(job)
    library = library_version()
    found, count = DataSet([], []), 0
    for folder in read_settings(Path(job.inputs[0])):
        home = Path(folder.path) / "cache" / architecture.name
        listed, left_out = rows_of(folder, architecture.fps)
        found.left_out.extend((path, why, home) for path, why in left_out)
        rows = in_order(folder.path, listed) if folder.shuffles else [row for row in listed if row is not None]
        if not rows:
            raise UsageError(f"{folder.path} holds no image or video that diffusion-pipe trains on{_why(left_out)}")
        for bucket in buckets_of(folder, [*dict.fromkeys(row.key for row in rows)], architecture.step):
            table = table_of(bucket, [row for row in rows if row.key == bucket.key])
            root = home / bucket.folder / "latents"
            places = {PurePosixPath(row.path.name): row for row in table.rows}
            items = [_item(row, root, place, count + n) for n, (place, row) in enumerate(places.items())]
            count += len(items)
            length = clip_length(bucket.frames)
            found.tables.append(TableItems(root, bucket.size, length, table.fingerprint, library, places, items))
    return found


def _why(left_out: Sequence[tuple[Path, str]]) -> str:
    """As the end of a line."""
    if not left_out:
        return ""
    path, reason = left_out[0]
    return f": all {len(left_out)} files are left out, such as {path.name} ({reason})"


def _item(row: Row, root: Path, place: PurePosixPath, number: int) -> Item:
    kinds: frozenset[Kind] = frozenset({"video" if row.is_video else "image"})
    return Item(row.path, number, kinds, root, place.name, exact=False, to_latents=False, below=place)


def _check(job: Job) -> None:
    """Raises UsageError for what the data set's file says, or what has no meaning for it."""
    assert job.cache is not None
    name, request = job.cache.trainer, job.cache
    if len(job.inputs) != 1 or job.listed or Path(job.inputs[0]).suffix != ".toml":
        raise UsageError(f"{name} caches whole data sets: the input is its dataset.toml, and nothing else")
    if job.output is not None:
        raise UsageError(f"{name} looks for caches in the folders that dataset.toml names; leave -o out")
    if job.size is not None or str(request.buckets) != "on":
        raise UsageError(f"sizes and buckets of {name} stand in its dataset.toml; leave --size and --buckets out")
    if request.cuts_clips:
        raise UsageError(
            f"which frames of videos {name} trains on stands in its dataset.toml (frame_buckets, size_buckets) and in "
            f"--video-clip-mode; leave {CUTS} out"
        )
    if job.existing == "keep":
        raise UsageError(f"a cache of {name} holds for one table: leave --no-clobber out, or it might be of another")
