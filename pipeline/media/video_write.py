"""Writing videos frame by frame: exact timestamps, known colour, the other streams beside the picture."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

from tvae.pipeline.errors import InputError
from tvae.pipeline.media.film import Film
from tvae.pipeline.media.formats import VideoFormat
from tvae.pipeline.media.frame_encoder import FrameEncoder
from tvae.pipeline.media.output_clock import OutputClock
from tvae.pipeline.media.spec import Frame, PictureSpec, WriteOptions

__all__ = ["VideoWriter"]

_NEVER_REORDERED = 2
"""Pictures of a film. x265 has not set when they are decoded: any number may come, another each time."""


class VideoWriter:
    """Encodes to a temporary file beside ``path``; commit() gives it its name.

    MP4 and MOV keep the source's clock: a time base of num/den becomes 1/den and every pts is multiplied by num, so for
    the usual num of 1 the numbers stay the same. Matroska rounds to whole milliseconds, with a warning.
    """

    def __init__(self, path: Path, target: VideoFormat, like: PictureSpec, options: WriteOptions) -> None:
        self.path = path
        self.warnings: list[str] = []
        self._clock = OutputClock(like, options)
        self._film = Film(path, target, like, options, self._clock, self.warnings)
        self._encoder = FrameEncoder(path, self._film.encoder, like, self._clock.time_base)

    def write(self, frame: Frame) -> None:
        """Encode one frame; of the spec's size, later than the one before.

        Raises InputError when its timestamp does not increase, OutputError when the disk fails.
        """
        pts, duration = self._clock.place(frame.pts, frame.duration, self.path)
        if self._clock.count == 1 and self._clock.delay:
            self._film.delay(self._clock.delay)
            self.warnings += self._clock.warnings
        for packet in self._encoder.encode(frame.rgb, pts, duration):
            self._film.mux(packet)

    def commit(self) -> None:
        """Finish the file and give it its name. Raises InputError when no frame was written."""
        if not self._clock.count:
            raise InputError(f"{self.path}: there are no frames to write; check the input")
        for packet in self._encoder.finish():
            if self._clock.count <= _NEVER_REORDERED:
                packet.dts = packet.pts
            self._film.mux(packet)
        self._film.finish()

    def abort(self) -> None:
        """Remove the temporary file; nothing after commit()."""
        self._film.abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()
