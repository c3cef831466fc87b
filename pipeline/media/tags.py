"""What a video's container says of the clip: chapters, and metadata such as the title.

FFmpeg names metadata alike for all containers where it can, so that a title in Matroska is a title in MP4.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from av.container import InputContainer, OutputContainer
from av.video.stream import VideoStream

from tvae.pipeline.errors import InputError
from tvae.pipeline.files.record import from_json, to_json
from tvae.pipeline.media.container import open_container, picture_stream, stream_tags
from tvae.pipeline.media.fingerprint import is_mark
from tvae.pipeline.media.formats import MATROSKA
from tvae.pipeline.media.packet_times import MOST_SECONDS
from tvae.pipeline.media.streams import check_texts

__all__ = ["Chapter", "ClipTags", "lost_tags", "put_chapters", "put_tags", "read_tags"]

_OF_THE_FILE = {"encoder", "software", "major_brand", "minor_version", "compatible_brands", "duration"}
_OF_THE_FILE |= {"operational_pattern_ul", "uid", "generation_uid", "product_uid", "material_package_umid"}
_OF_THE_FILE |= {"company_name", "product_name", "product_version", "product_version_num", "toolkit_version_num"}
_OF_THE_FILE |= {"application_platform", "modification_date"}
"""Metadata, in lower case, that tells how the source was written: not true of another file. MXF has much of it."""
_OF_THE_STREAM = {"encoder", "handler_name", "vendor_id", "rotate", "alpha_mode", "duration", "bps", "number_of_frames"}
_OF_THE_STREAM |= {"number_of_bytes"}
"""The same of the picture's stream, which is encoded anew and upright."""
_STATISTICS, _STEREO, _TIMECODE = "_statistics_", "stereo_mode", "timecode"
_MOST_TIMECODE_RATE = 255
"""In frames a second, of MP4: with more, it refuses the whole file."""
_MOST_CHAPTERS = 10_000


@dataclass(frozen=True)
class Chapter:
    """From ``start`` to ``end``, in units of ``time_base``; its title is in the metadata."""

    start: int
    end: int
    time_base: Fraction
    metadata: dict[str, str]

    @property
    def sound(self) -> bool:
        """Whether containers can hold it."""
        return 0 <= self.start <= self.end and self.end * self.time_base <= MOST_SECONDS


@dataclass(frozen=True)
class ClipTags:
    """``metadata`` is of the container, ``picture`` of the picture's stream; chapters are in the order of their
    starts."""

    metadata: dict[str, str] = field(default_factory=dict)
    picture: dict[str, str] = field(default_factory=dict)
    chapters: tuple[Chapter, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.metadata or self.picture or self.chapters)

    def to_json(self) -> dict[str, Any]:
        """JSON-able."""
        found: dict[str, Any] = to_json(self)
        return found

    @classmethod
    def from_record(cls, record: Mapping[str, Any], folder: Path) -> ClipTags:
        """Of the record that latents in ``folder`` keep of their source's streams; empty where it has none.

        Raises InputError for a damaged one.
        """
        try:
            check_texts(record)
            tags = from_json(_Record, record, "record").tags
            if len(tags.chapters) > _MOST_CHAPTERS or not all(chapter.sound for chapter in tags.chapters):
                raise ValueError("impossible chapters")
        except ValueError as error:
            raise InputError(
                f"{folder}: the record of its chapters and metadata is damaged ({error}); encode again"
            ) from error
        return tags


@dataclass(frozen=True)
class _Record:
    tags: ClipTags = field(default_factory=ClipTags)


def read_tags(path: str | Path, warnings: list[str]) -> ClipTags:
    """Of a video; ``warnings`` names what cannot be kept. Raises InputError when it cannot be read."""
    with open_container(Path(path).absolute()) as container:
        return _tags(container, warnings)


def _tags(container: InputContainer, warnings: list[str]) -> ClipTags:
    chapters = [
        Chapter(c["start"], c["end"], c["time_base"] or Fraction(1), c["metadata"]) for c in container.chapters()
    ]
    good = sorted((c for c in chapters if c.sound), key=lambda c: c.start * c.time_base)[:_MOST_CHAPTERS]
    if len(good) < len(chapters):
        warnings.append(f"{len(chapters) - len(good)} chapters left out: their times are impossible")
    stream = picture_stream(container)
    whole = _kept(container.metadata, _OF_THE_FILE)
    picture = {} if stream is None else _kept(stream_tags(stream), _OF_THE_STREAM)
    # of the picture alone: a muxer of MP4 would look for it in every stream of pictures
    picture |= {key.lower(): whole.pop(key) for key in list(whole) if key.lower() == _TIMECODE}
    return ClipTags(whole, picture, tuple(good))


def _kept(tags: dict[str, str], left: Collection[str]) -> dict[str, str]:
    return {
        key: text
        for key, text in tags.items()
        if key.lower() not in left
        and not key.lower().startswith(_STATISTICS)
        and not is_mark(text)
        and (key.lower(), text) != ("language", "und")
    }


def put_tags(container: OutputContainer, picture: VideoStream, tags: ClipTags, rate: Fraction) -> None:
    """All but the chapters into an output whose header is not written yet; ``rate`` in frames a second."""
    for target, found in ((container.metadata, tags.metadata), (picture.metadata, tags.picture)):
        target.update({key: text for key, text in found.items() if not _refused(key.lower(), text, rate)})


def _refused(key: str, text: str, rate: Fraction) -> bool:
    """Whether a muxer would refuse the whole file for it."""
    if key == _STEREO:
        return re.fullmatch("[a-z_]+", text) is None
    return key == _TIMECODE and rate > _MOST_TIMECODE_RATE


def put_chapters(container: OutputContainer, chapters: tuple[Chapter, ...], delay: Fraction) -> None:
    """Into an output, ``delay`` seconds late; any time before it is closed."""
    container.set_chapters(
        [
            {
                "id": number,
                "start": chapter.start + round(delay / chapter.time_base),
                "end": chapter.end + round(delay / chapter.time_base),
                "time_base": chapter.time_base,
                "metadata": chapter.metadata,
            }
            for number, chapter in enumerate(chapters, 1)
        ]
    )


def lost_tags(path: Path, name: str, tags: ClipTags) -> list[str]:
    """One line for each kind of thing that a finished file of format ``name`` does not give back."""
    with open_container(path) as container:
        picture = picture_stream(container)
        found = {key.lower() for key in (*container.metadata, *(picture.metadata if picture is not None else ()))}
        chapters = len(tags.chapters) - len(container.chapters())
    lines = []
    wanted = [*tags.metadata, *(key for key in tags.picture if key.lower() == _TIMECODE)]
    if lost := [key for key in wanted if key.lower() not in found]:
        lines.append(f"metadata {', '.join(lost)}")
    if chapters > 0:
        lines.append(f"{chapters} chapters")
    advice = "" if name == MATROSKA.name else f"; write {MATROSKA.suffixes[0]} to keep them"
    return [f"{line} left out: {name} files cannot hold them{advice}" for line in lines]
