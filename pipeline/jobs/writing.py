"""The target side of decode and roundtrip: a Writer for an item, set up from the job."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tvae.pipeline.errors import UsageError
from tvae.pipeline.files.atomic import write_error
from tvae.pipeline.files.written import WrittenFile
from tvae.pipeline.jobs.events import Made
from tvae.pipeline.jobs.job import Job
from tvae.pipeline.jobs.outputs import Item
from tvae.pipeline.media import (
    ClipTags,
    PictureSpec,
    SideStreams,
    WriteOptions,
    Writer,
    check_write_options,
    open_parted_writer,
    open_writer,
    parse_colour,
)
from tvae.pipeline.media.formats import VIDEO_OPTIONS, Kind

__all__ = ["check_writing", "made_picture", "open_output", "write_options"]

_OF_VIDEOS = (*VIDEO_OPTIONS, "color")
"""Fields of a job that mean nothing to an image."""


def write_options(job: Job, kind: Kind, audio: SideStreams | Path | None = None) -> WriteOptions:
    """The job's wishes, as far as this kind of file has a use for them. UsageError for a colour that does not exist."""
    if kind == "image":
        return WriteOptions(enc=dict(job.encoder_options))
    return WriteOptions(
        codec=job.codec,
        crf=job.crf,
        pix_fmt=job.pix_fmt,
        enc=dict(job.encoder_options),
        fps=job.fps,
        audio=audio,
        colour=parse_colour(job.color) if job.color else None,
    )


def check_writing(job: Job, items: Iterable[Item]) -> None:
    """Raises UsageError when the outputs that are certain already could not be written with the job's options, and for
    options that would do nothing for any of them."""
    if job.operation in ("encode", "cache"):
        return
    items = [item for item in items if item.problem is None]
    given = [f"--{name.replace('_', '-')}" for name in _OF_VIDEOS if getattr(job, name) is not None]
    if given and items and all(item.kinds == {"image"} for item in items):
        raise UsageError(f"{given[0]} is for videos, and all of this is images; leave it out")
    certain = {
        (item.output(kind).suffix.lower(), kind) for item in items for kind in item.kinds if len(item.kinds) == 1
    }
    for suffix, kind in sorted(certain):
        check_write_options(suffix, write_options(job, kind))


@contextmanager
def open_output(
    path: Path,
    like: PictureSpec,
    kind: Kind,
    job: Job,
    audio: SideStreams | Path | None,
    fingerprint: str,
    *,
    tags: ClipTags | None = None,
    parted: bool = False,
) -> Iterator[Writer]:
    """A Writer in a folder that exists; ``parted``: of a video, one of parts. OutputError, from it too, for a full disk
    or a lost folder."""
    options = dataclasses.replace(write_options(job, kind, audio), tags=tags, fingerprint=fingerprint)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        opened: Writer = (open_parted_writer if parted and kind == "video" else open_writer)(path, like, options)
    except OSError as error:
        raise write_error(path, error) from error
    with opened as writer:
        yield writer


def made_picture(output: Path, fingerprint: str, job: Job) -> Made | None:
    """Of a picture that is complete: it is read once, in the thread that has written it. None: nobody records it, or it
    cannot be read, as one that was moved away at once; whoever records it tells.
    """
    if not job.recorded:
        return None
    try:
        return Made(WrittenFile.of(output), {"fingerprint": fingerprint})
    except OSError:
        return None
