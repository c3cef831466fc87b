"""What the parts of media agree on: a picture's description, a frame, and the two ends of the flow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np

from tvae.pipeline.media.formats import Kind

if TYPE_CHECKING:
    from tvae.pipeline.media.streams import SideStreams
    from tvae.pipeline.media.tags import ClipTags

__all__ = ["Colour", "Frame", "MediaInfo", "PictureSpec", "Reader", "StreamInfo", "WriteOptions", "Writer"]


@dataclass(frozen=True)
class Colour:
    """How a file says its numbers are to be read, in FFmpeg's names; None: the file does not say.

    ``matrix`` is FFmpeg's color_space ("bt709", "smpte170m", "bt2020nc", "gbr" for RGB), ``range`` is "tv" (limited)
    or "pc" (full), ``primaries`` and ``transfer`` are color_primaries and color_transfer ("bt709", "smpte2084", ...).
    """

    matrix: str | None = None
    range: str | None = None
    primaries: str | None = None
    transfer: str | None = None

    def to_json(self) -> dict[str, str | None]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Colour:
        return cls(**{name: data.get(name) for name in ("matrix", "range", "primaries", "transfer")})


@dataclass(frozen=True)
class StreamInfo:
    """One stream of a file that is not its picture."""

    index: int
    type: str
    codec: str
    language: str | None


@dataclass(frozen=True)
class PictureSpec:
    """What a Writer needs to know of a picture; buildable from MediaInfo or from latents' metadata alone.

    ``width`` and ``height`` are upright and in stored pixels. ``time_base`` is the unit of Frame.pts in seconds (None
    for images); ``frame_rate`` is a hint for players and rate control, the timestamps rule.
    """

    width: int
    height: int
    time_base: Fraction | None = None
    frame_rate: Fraction | None = None
    sample_aspect_ratio: Fraction = Fraction(1)
    colour: Colour = field(default_factory=Colour)

    def to_json(self) -> dict[str, Any]:
        return {
            "width": self.width,
            "height": self.height,
            "time_base": _text(self.time_base),
            "frame_rate": _text(self.frame_rate),
            "sample_aspect_ratio": _text(self.sample_aspect_ratio),
            "colour": self.colour.to_json(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PictureSpec:
        return cls(
            width=int(data["width"]),
            height=int(data["height"]),
            time_base=_fraction(data.get("time_base")),
            frame_rate=_fraction(data.get("frame_rate")),
            sample_aspect_ratio=_fraction(data.get("sample_aspect_ratio")) or Fraction(1),
            colour=Colour.from_json(data.get("colour") or {}),
        )


@dataclass(frozen=True)
class MediaInfo:
    """What probe() found out about one image or video.

    ``width`` and ``height`` are those of the frames a Reader gives: upright, in stored pixels; the sample aspect ratio
    (of the upright picture) is carried, not applied. ``rotation`` is the clockwise turn, in degrees, that was applied
    to get there, after a left-right mirroring if ``mirrored``. ``bits`` is the depth of one stored component.
    ``colour`` is as tagged in the file. ``frames`` is the container's word, perhaps None or wrong; ``duration`` is in
    seconds. ``container`` and ``codec`` are FFmpeg's (for images Pillow's) names.
    """

    path: Path
    kind: Kind
    width: int
    height: int
    rotation: int
    mirrored: bool
    sample_aspect_ratio: Fraction
    pix_fmt: str
    bits: int
    has_alpha: bool
    colour: Colour
    container: str
    codec: str
    time_base: Fraction | None = None
    frame_rate: Fraction | None = None
    frames: int | None = None
    duration: float | None = None
    streams: tuple[StreamInfo, ...] = ()

    @property
    def spec(self) -> PictureSpec:
        """What a Writer needs to write this picture again."""
        return PictureSpec(
            self.width, self.height, self.time_base, self.frame_rate, self.sample_aspect_ratio, self.colour
        )

    def to_json(self) -> dict[str, Any]:
        """JSON-able; fractions as "num/den"."""
        return {
            **self.spec.to_json(),
            "path": str(self.path),
            "kind": self.kind,
            "rotation": self.rotation,
            "mirrored": self.mirrored,
            "pix_fmt": self.pix_fmt,
            "bits": self.bits,
            "has_alpha": self.has_alpha,
            "container": self.container,
            "codec": self.codec,
            "frames": self.frames,
            "duration": self.duration,
            "streams": [asdict(stream) for stream in self.streams],
        }


@dataclass
class Frame:
    """One upright picture: ``rgb`` is uint8 [H, W, 3], full-range R'G'B'. Where alpha was asked for and the image has
    it, [H, W, 4]: colours as they are stored, not multiplied by alpha, then alpha (255: opaque). A Writer of
    images takes it, too, and leaves alpha out where the format has none.

    ``pts`` and ``duration`` count MediaInfo.time_base; both are None for an image. A Reader's pts strictly increase,
    and a frame's duration reaches to the next frame.
    """

    rgb: np.ndarray
    pts: int | None = None
    duration: int | None = None


@dataclass(frozen=True)
class WriteOptions:
    """How to write. None leaves the choice to the writer; what each means for images and videos: see open_writer."""

    codec: str | None = None
    crf: float | None = None
    pix_fmt: str | None = None
    enc: Mapping[str, str] = field(default_factory=dict)
    fps: Fraction | None = None
    audio: SideStreams | Path | None = None
    tags: ClipTags | None = None
    colour: Colour | None = None
    fingerprint: str | None = None


class Reader(Protocol):
    """A source of frames, to be iterated once. ``warnings`` grows while it is read.

    ``count``, in the place of iterating, decodes all frames and says how many there are.
    """

    info: MediaInfo
    warnings: list[str]

    def __iter__(self) -> Iterator[Frame]: ...
    def count(self) -> int: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Writer(Protocol):
    """A sink of frames. Nothing exists under ``path`` before commit(); leaving the context without it aborts."""

    path: Path
    warnings: list[str]

    def write(self, frame: Frame) -> None: ...
    def commit(self) -> None: ...
    def abort(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def _text(value: Fraction | None) -> str | None:
    return None if value is None else f"{value.numerator}/{value.denominator}"


def _fraction(text: str | None) -> Fraction | None:
    return None if text is None else Fraction(text)
