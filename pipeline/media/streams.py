"""The other streams of a video (audio, subtitles), kept untouched beside the latents and put back in step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["SideStreams", "copy_streams"]


@dataclass(frozen=True)
class SideStreams:
    """The streams that were kept: which files in ``folder`` hold them, and every packet's original times."""

    folder: Path

    def to_json(self) -> dict[str, Any]:
        raise NotImplementedError

    @classmethod
    def from_json(cls, data: Mapping[str, Any], folder: Path) -> SideStreams:
        """Raises InputError when the record is not one of ours or its files are missing."""
        raise NotImplementedError


def copy_streams(source: str | Path, dest_stem: Path, warnings: list[str]) -> SideStreams | None:
    """Remux every audio and subtitle stream of ``source`` into ``<dest_stem>.<suffix>``; None when there is none.

    Names what could not be kept in ``warnings``. Raises InputError when the source cannot be read.
    """
    raise NotImplementedError
