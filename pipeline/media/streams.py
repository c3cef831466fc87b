"""The record of a video's other streams (audio, subtitles, a cover, ...) kept beside its latents."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

from tvae.pipeline.errors import InputError
from tvae.pipeline.files.checked import is_name
from tvae.pipeline.files.record import Count, Within, from_json
from tvae.pipeline.media.attachments import KeptAttachment
from tvae.pipeline.media.packet_times import check_runs

MOST_STREAMS = 256
"""Of one clip; FFmpeg's containers end a little further."""

__all__ = ["SideStream", "SideStreams", "check_texts"]


def check_texts(record: Mapping[str, Any]) -> None:
    """`ValueError` where a text is none that a container can hold: file names that are not UTF-8 are no metadata."""
    json.dumps(dict(record), ensure_ascii=False).encode()


@dataclass(frozen=True)
class SideStream:
    """One kept stream: stream number ``file_index`` of ``file``, number ``index`` in the source.

    ``disposition`` is FFmpeg's flags; ``times`` are the runs of ``packet_times.TimeRuns``, in ``time_base``.
    ``packets``, ``size`` (bytes) and ``crc32`` (of all payloads in order) tell whether the file still holds what was
    put in.
    """

    file: str
    file_index: Count
    index: Count
    type: str
    codec: str
    language: str | None
    disposition: Count
    metadata: dict[str, str]
    time_base: Fraction
    packets: Annotated[int, Within(0, 2**63 - 1)]
    size: Annotated[int, Within(0, 2**63 - 1)]
    crc32: Annotated[int, Within(0, 2**32 - 1)]
    times: list[list[int | None]]


@dataclass(frozen=True)
class _Record:
    streams: tuple[SideStream, ...]
    attachments: tuple[KeptAttachment, ...] = ()


@dataclass(frozen=True)
class SideStreams:
    """The streams kept of one video, in files of ``folder``."""

    folder: Path
    streams: tuple[SideStream, ...]
    attachments: tuple[KeptAttachment, ...] = ()

    @property
    def files(self) -> tuple[str, ...]:
        """Names of the files of streams, without the folder."""
        return tuple(dict.fromkeys(stream.file for stream in self.streams))

    def to_json(self) -> dict[str, Any]:
        """JSON-able, without the folder."""
        streams = [{**asdict(stream), "time_base": str(stream.time_base)} for stream in self.streams]
        return {"streams": streams, "attachments": [asdict(attachment) for attachment in self.attachments]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any], folder: Path) -> SideStreams:
        """Raises InputError when the record is not one of ours or one of its files is missing."""
        try:
            check_texts(data)
            record = from_json(_Record, data, "record")
            streams, attachments = record.streams, record.attachments
            names = {stream.file for stream in streams} | {attachment.file for attachment in attachments}
            if not all(is_name(name) for name in names):
                raise ValueError("a file outside the folder")
            places = {(s.file, s.file_index) for s in streams} | {(a.file, None) for a in attachments}
            if max(len(streams), len(attachments)) > MOST_STREAMS or len(places) < len(streams) + len(attachments):
                raise ValueError("a stream twice, or too many of them")
            for stream in streams:
                check_runs(stream.times, stream.time_base)
        except ValueError as error:
            raise InputError(f"{folder}: the record of its other streams is damaged ({error}); encode again") from error
        for name in sorted(names):
            if not (folder / name).is_file():
                raise InputError(f"{folder}: {name}, which holds other streams of it, is missing; encode again")
        return cls(folder, streams, attachments)
