"""Writing videos frame by frame: exact timestamps, known colour, the other streams beside the picture."""

from __future__ import annotations

import contextlib
import math
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Self

import av
import av.error
from av.container import OutputContainer
from av.packet import Packet

from tvae.pipeline.errors import InputError, UsageError
from tvae.pipeline.media.atomic import publish, reserve, write_error
from tvae.pipeline.media.colour import FromRgb
from tvae.pipeline.media.encoder import CONTAINERS, add_encoder
from tvae.pipeline.media.fingerprint import video_tag
from tvae.pipeline.media.spec import Frame, PictureSpec, WriteOptions
from tvae.pipeline.media.stream_mux import StreamMuxer

__all__ = ["VideoWriter"]

_MAX_TIMESCALE = 2**31 - 1


class VideoWriter:
    """Encodes to a temporary file beside ``path``; commit() gives it its name.

    MP4 and MOV keep the source's clock: a time base of num/den becomes 1/den and every pts is multiplied by num, so for
    the usual num of 1 the numbers stay the same. Matroska rounds to whole milliseconds, with a warning.
    """

    def __init__(self, path: Path, like: PictureSpec, options: WriteOptions) -> None:
        self.path = path
        self.warnings: list[str] = []
        self._shape = (like.height, like.width, 3)
        self._clock = _OutputClock(like, options)
        self._durations: dict[int, int] = {}
        self._container: OutputContainer | None = None
        self._streams = StreamMuxer(options.audio, self.warnings)
        self._temporary = reserve(path)
        self._finished = False
        try:
            self._open(like, options)
        except (av.error.FFmpegError, OSError) as error:
            self.abort()
            raise write_error(path, error) from error
        except BaseException:
            self.abort()
            raise

    def _open(self, like: PictureSpec, options: WriteOptions) -> None:
        muxer = CONTAINERS[self.path.suffix.lower()]
        timescales = {}
        if muxer in ("mp4", "mov"):
            own = self._clock.time_base.denominator
            common = math.lcm(own, *self._streams.timescales())
            # the movie's own scale counts the delays before each stream starts
            timescales = {
                "video_track_timescale": str(own),
                "movie_timescale": str(common if common <= _MAX_TIMESCALE else own),
            }
        self._container = av.open(f"file:{self._temporary}", "w", format=muxer, container_options=timescales)
        if options.fingerprint is not None:
            self._container.metadata.update(video_tag(options.fingerprint))
        self._encoder = add_encoder(self._container, like, options, self._clock.time_base, self._clock.rate)
        self._streams.attach(self._container)
        self._container.start_encoding()
        self._from_rgb = FromRgb(self._encoder.colour, self._encoder.pix_fmt, like.width, like.height)
        if options.fps is not None and not self._streams.empty:
            self.warnings.append(f"the picture runs at {options.fps} frames a second now, the sound as before")
        if like.sample_aspect_ratio != 1 and not self._encoder.keeps_aspect:
            self.warnings.append(f"pixel aspect {like.sample_aspect_ratio} is lost in {muxer}; write .mp4 to keep it")
        unit = self._encoder.stream.time_base
        if unit is not None and (self._clock.time_base / unit).denominator != 1:
            self.warnings.append(
                f"timestamps rounded to {unit} s, all that {muxer} keeps; write .mp4 to keep them exact"
            )

    def write(self, frame: Frame) -> None:
        """Encode one frame; of the spec's size, later than the one before.

        Raises InputError when its timestamp does not increase, TvaeError when the disk fails.
        """
        if frame.rgb.shape != self._shape or frame.rgb.dtype != "uint8":
            raise ValueError(f"{self.path}: frame is {frame.rgb.dtype} {frame.rgb.shape}, expected uint8 {self._shape}")
        pts, duration = self._clock.place(frame, self.path)
        if self._clock.count == 1 and self._clock.delay:
            self._streams.delay(self._clock.delay)
            self.warnings.append(f"started before zero; all of it was moved by {float(self._clock.delay):g} s")
        self._durations[pts] = duration
        picture = self._from_rgb(frame.rgb)
        picture.pts, picture.duration, picture.time_base = pts, duration, self._clock.time_base
        try:
            for packet in self._encoder.stream.encode(picture):
                self._mux(packet)
        except (av.error.FFmpegError, OSError) as error:
            raise write_error(self.path, error) from error

    def commit(self) -> None:
        """Finish the file and give it its name. Raises InputError when no frame was written."""
        if not self._clock.count:
            raise InputError(f"{self.path}: there are no frames to write; check the input")
        assert self._container is not None
        try:
            for packet in self._encoder.stream.encode(None):
                self._mux(packet)
            self._streams.finish()
            self._container.close()
        except (av.error.FFmpegError, OSError) as error:
            raise write_error(self.path, error) from error
        publish(self._temporary, self.path)
        self._finished = True

    def abort(self) -> None:
        """Remove the temporary file; nothing after commit()."""
        self._streams.close()
        if self._finished:
            return
        self._finished = True
        if self._container is not None:
            with contextlib.suppress(av.error.FFmpegError, OSError, ValueError):  # it writes a trailer nobody will read
                self._container.close()
        self._temporary.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()

    def _mux(self, packet: Packet) -> None:
        assert self._container is not None
        assert packet.pts is not None
        # encoders forget durations; the last one of the film is found nowhere else
        packet.duration = self._durations.pop(packet.pts, 0)
        start = packet.dts if packet.dts is not None else packet.pts
        self._streams.mux_until(float(start * self._clock.time_base))
        self._container.mux_one(packet)


class _OutputClock:
    """Where frames go in time: pts and durations in ``time_base`` (1/N), from the frames' own or from --fps.

    No file shows what lies before zero: ``delay`` is by how many seconds a film that starts there is moved, known from
    its first frame on. ``rate`` is nominal. Raises UsageError when there is nothing to go by.
    """

    def __init__(self, like: PictureSpec, options: WriteOptions) -> None:
        rate = options.fps if options.fps is not None else like.frame_rate
        self._constant = options.fps is not None or like.time_base is None
        if self._constant and rate is None:
            raise UsageError("the input has no timestamps and no frame rate; give one with --fps")
        if rate is not None and rate <= 0:
            raise UsageError(f"a rate of {rate} frames a second cannot be; give another --fps")
        self.rate = rate or Fraction(25)
        unit = 1 / self.rate if self._constant or like.time_base is None else like.time_base
        if unit.denominator > _MAX_TIMESCALE:
            raise UsageError(f"a clock of {unit} s cannot be stored; give a rounder rate with --fps")
        self._ticks = unit.numerator
        self._period = max(1, round(1 / (self.rate * unit)))
        self.time_base = Fraction(1, unit.denominator)
        self.count = 0
        self.delay = Fraction(0)
        self._last: int | None = None

    def place(self, frame: Frame, path: Path) -> tuple[int, int]:
        """pts and duration of the next frame."""
        if self._constant or frame.pts is None:
            pts, duration = self.count * self._period, self._period
        else:
            pts, duration = frame.pts, frame.duration or self._period
        if self._last is None:
            self.delay = max(0, -pts * self._ticks) * self.time_base
        elif pts <= self._last:
            raise InputError(
                f"{path}: timestamps do not increase at frame {self.count} ({self._last}, {pts}); give --fps"
            )
        self._last = pts
        self.count += 1
        return pts * self._ticks + int(self.delay / self.time_base), duration * self._ticks
