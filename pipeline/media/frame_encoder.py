"""Pictures into an open encoder, compressed packets out of it."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import av.error
import numpy as np
from av.packet import Packet
from av.video.frame import VideoFrame

from tvae.pipeline.files.atomic import write_error
from tvae.pipeline.media.colour import FromRgb
from tvae.pipeline.media.encoder import Encoder
from tvae.pipeline.media.spec import PictureSpec

__all__ = ["FrameEncoder"]


class FrameEncoder:
    """Feeds one encoder; ``path`` is the file that errors name."""

    def __init__(self, path: Path, encoder: Encoder, like: PictureSpec, time_base: Fraction) -> None:
        self._path, self._encoder, self._time_base = path, encoder, time_base
        self._shape = (like.height, like.width, 3)
        self._from_rgb = FromRgb(encoder.colour, encoder.pix_fmt, like.width, like.height)
        self._durations: dict[int, int] = {}

    def encode(self, rgb: np.ndarray, pts: int, duration: int) -> list[Packet]:
        """The packets that are ready after this uint8 [H, W, 3] picture, each with its picture's duration."""
        if rgb.shape != self._shape or rgb.dtype != "uint8":
            raise ValueError(f"{self._path}: frame is {rgb.dtype} {rgb.shape}, expected uint8 {self._shape}")
        self._durations[pts] = duration
        picture = self._from_rgb(rgb)
        picture.pts, picture.duration, picture.time_base = pts, duration, self._time_base
        return self._packets(picture)

    def finish(self) -> list[Packet]:
        """All that the encoder still holds."""
        return self._packets(None)

    def _packets(self, picture: VideoFrame | None) -> list[Packet]:
        try:
            packets = self._encoder.context.encode(picture)
        except (av.error.FFmpegError, OSError) as error:
            raise write_error(self._path, error) from error
        for packet in packets:
            assert packet.pts is not None
            # encoders forget durations; the last one of the film is found nowhere else
            packet.duration = self._durations.pop(packet.pts, 0)
        return packets
