"""What comes from a process of a sandbox, checked: it is trusted no more than the file that it reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvae.pipeline.errors import InputError, OutputError
from tvae.pipeline.files.record import from_json
from tvae.pipeline.media.decoders import Decoder
from tvae.pipeline.media.room import VIDEO_HELD_BYTES
from tvae.pipeline.media.spec import MediaInfo

__all__ = ["Asked", "channels", "described", "lines", "raise_told", "whole"]

_LARGEST = 1 << 63
"""Times are below it, and above its negative."""


@dataclass
class Asked:
    """One file and its limits. hold, alpha, quick, decoder: see ``open_reader``; taken: bytes that room was
    asked for."""

    path: Path
    max_pixels: int
    memory: int | None
    hold: Callable[[int], None] | None = None
    alpha: bool = False
    quick: bool = False
    decoder: Decoder | None = None
    taken: int | None = None

    def take(self, size: Any) -> None:
        """Room for so many bytes. `ValueError` for what no reader asks for."""
        if type(size) is not int or size < 0 or (self.memory is not None and size > self.memory):
            raise ValueError("it asks for more room than there is")
        if self.hold is not None and self.taken is None:
            self.hold(size)
        self.taken = size


def described(answer: Any, asked: Asked, kind: str) -> MediaInfo:
    """What an answer says of the file. `ValueError` for another kind, and for more than was allowed."""
    if not isinstance(answer, dict):
        raise ValueError("no description")
    info = from_json(MediaInfo, answer | {"path": asked.path}, kind)
    if info.kind != kind:
        raise ValueError(f"it is no {kind}")
    room = asked.memory if asked.taken is None else asked.taken
    pixels, each = info.width * info.height, 3 + asked.alpha if kind == "image" else VIDEO_HELD_BYTES
    if min(info.width, info.height) < 1 or pixels > asked.max_pixels or (room is not None and each * pixels > room):
        raise ValueError("its picture is larger than it may be")
    if kind == "video" and info.time_base is None:
        raise ValueError("a video without a clock")
    return info


def channels(answer: Any, asked: Asked) -> int:
    """Of an image's pixels. `ValueError` for what was not asked for."""
    if type(answer) is not int or answer not in ((3, 4) if asked.alpha else (3,)):
        raise ValueError("pixels of a wrong kind")
    return answer


def lines(answer: Any) -> list[str]:
    """Warnings. `ValueError` for what is no list."""
    if not isinstance(answer, list):
        raise ValueError("no list of warnings")
    return [str(line) for line in answer]


def whole(answer: Any) -> int:
    """A whole number of 64 bits with a sign; `ValueError` for all else."""
    if type(answer) is not int or not -_LARGEST <= answer < _LARGEST:
        raise ValueError("no whole number")
    return answer


def raise_told(answer: dict[str, Any], path: Path) -> None:
    """Raises what an answer says is wrong with the file, or with us."""
    if "error" in answer:
        raise (OutputError if "output" in answer else InputError)(str(answer["error"]))
    if "fault" in answer:
        raise RuntimeError(f"{path}: {answer['fault']}")
