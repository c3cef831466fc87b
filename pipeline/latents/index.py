"""`index.json` of a video folder: written last, so that its presence says the folder is complete."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from tvae.pipeline.errors import InputError
from tvae.pipeline.files.atomic import replacing
from tvae.pipeline.files.checked import is_name, read_json
from tvae.pipeline.files.content_checksum import CHECKSUM, of_json
from tvae.pipeline.files.record import Count, Within, from_json, to_json
from tvae.pipeline.latents.meta import LatentsMeta

INDEX_NAME = "index.json"
Size = Annotated[int, Within(0, 2**63 - 1)]


@dataclass(frozen=True)
class PartEntry:
    """One part as the index knows it; `bytes` shows a truncated file without reading it, `checksum` is the one that the
    file carries (None: of a program that writes none)."""

    file: str
    first_frame: Count
    frames: Count
    bytes: Size
    checksum: str | None = None


@dataclass(frozen=True)
class FileEntry:
    """A file that is not a part. `checksum`: sha256 of all its bytes."""

    file: str
    bytes: Size
    checksum: str | None = None


@dataclass(frozen=True)
class StreamsEntry:
    """The source's other streams: their container files inside the folder, and the media module's own record."""

    files: tuple[FileEntry, ...]
    record: dict[str, Any]


@dataclass(frozen=True)
class Index:
    """The clip's metadata and the list of its files."""

    meta: LatentsMeta
    parts: tuple[PartEntry, ...]
    streams: StreamsEntry | None = None
    dropped: Count = 0
    """Frames at the source's end that were left out, for the VAE takes no clip of its length."""
    checked: bool = True
    """Whether it was read from a file that carries its checksum, or from none."""

    @property
    def files(self) -> tuple[PartEntry | FileEntry, ...]:
        """Every file of the folder but the index itself."""
        return (*self.parts, *(self.streams.files if self.streams else ()))

    @property
    def frames(self) -> int:
        """Number of frames of the clip."""
        return sum(part.frames for part in self.parts)

    def to_json(self) -> dict[str, Any]:
        """JSON-able; what `index.json` holds."""
        return {
            **self.meta.to_json(),
            "frames": self.frames,
            "dropped": self.dropped,
            "parts": to_json(self.parts),
            "streams": to_json(self.streams),
        }


@dataclass(frozen=True)
class _Files:
    parts: tuple[PartEntry, ...]
    streams: StreamsEntry | None = None
    dropped: Count = 0


def write_index(folder: Path, index: Index) -> None:
    """Commit the folder: one rename makes it complete."""
    data = index.to_json()
    text = json.dumps({**data, CHECKSUM: of_json(data)}, indent=1, allow_nan=False)
    with replacing(folder / INDEX_NAME) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def read_index(folder: Path) -> Index:
    """Read and check `index.json`; `InputError` says why it cannot be used."""
    path = folder / INDEX_NAME
    try:
        data = read_json(path)
        meta = LatentsMeta.from_json(data)
        files = from_json(_Files, data, "index")
        whole = CHECKSUM not in data or data[CHECKSUM] == of_json(data)
    except FileNotFoundError:
        raise InputError(f"'{folder}' has no {INDEX_NAME}: its encode was interrupted; run it again") from None
    except OSError as error:
        raise InputError(f"cannot read '{path}': {error.strerror or error}") from error
    except ValueError as error:
        raise InputError(f"damaged '{path}': {error}") from error
    index = Index(meta, files.parts, files.streams, files.dropped, CHECKSUM in data)
    if not index.parts:
        raise InputError(f"damaged '{path}': it lists no parts")
    for entry in index.files:
        if not is_name(entry.file):
            raise InputError(f"damaged '{path}': '{entry.file}' is not a name in its folder")
    if len({entry.file for entry in index.files}) < len(index.files):
        raise InputError(f"damaged '{path}': it lists a file twice")
    if not whole:
        raise InputError(f"damaged '{path}': its content is not what was written; encode again")
    return index
