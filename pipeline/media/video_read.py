"""Reading videos (and the still formats only FFmpeg knows) frame by frame, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import av.error
import numpy as np
from av.video.codeccontext import VideoCodecContext
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from tvae.pipeline.errors import InputError
from tvae.pipeline.media.colour import ToRgb, read_tags
from tvae.pipeline.media.container import (
    breaks_after,
    describe_stream,
    is_still_format,
    no_decoder,
    open_container,
    other_streams,
    picture_stream,
)
from tvae.pipeline.media.frame_clock import FirstPackets, FrameClock
from tvae.pipeline.media.last_frame import TrackRead
from tvae.pipeline.media.orientation import UPRIGHT, Orientation, from_display_matrix
from tvae.pipeline.media.room import MAX_PIXELS, VIDEO_HELD_BYTES, too_large, too_many_pixels
from tvae.pipeline.media.seams import Seams, may_be_joined
from tvae.pipeline.media.spec import Colour, Frame, MediaInfo

__all__ = ["VideoReader"]

_ALIGNMENT = 1 << 20
"""Pixels by which FFmpeg's frames are larger than the picture, at most."""


class VideoReader:
    """Frames of one video, upright and in presentation order. Opening it decodes the first frame.

    A decoder error after the first frame raises InputError from the iteration: pictures are missing there, and nothing
    invents them. Before it, undecodable packets (a recording that starts between key frames) are passed over with a
    warning. Frames the decoder flags as damaged but gives are kept, with a warning.
    """

    def __init__(
        self,
        path: Path,
        max_pixels: int = MAX_PIXELS,
        memory: int | None = None,
        on_size: Callable[[int], None] = lambda _: None,
        *,
        quick: bool = False,
    ) -> None:
        """max_pixels: of a frame. memory: bytes that reading may take, None for any number. on_size: is told how many
        pixels a frame has, before one is decoded where the container says it. quick: see ``ToRgb``."""
        self.warnings: list[str] = []
        self._path, self._memory, self._on_size = path, memory, on_size
        self._most = max_pixels if memory is None else max(1, min(max_pixels, memory // VIDEO_HELD_BYTES))
        self._allowed = max_pixels
        self._container = open_container(path, self._most + _ALIGNMENT)
        try:
            self._picture = self._find_picture()
            self._check_size(self._picture.codec_context)
            self._picture.thread_type = "AUTO"
            self._seams = Seams()
            self._track = TrackRead(self._picture, self._container.format.name)
            self._first_packets = FirstPackets(self._container.format.name)
            self._decoded = self._decode()
            first = next(self._decoded, None)
            if first is None:
                still = is_still_format(self._container)
                what = "is no image that can be read" if still else "holds a video stream without a single whole frame"
                raise InputError(f"{path}: {what}, or is too large ({self._too_large}); leave it out")
            self._on_size(first.width * first.height)
            self._first: VideoFrame | None = first
            self._orientation = self._find_orientation(first)
            self.info = self._describe(first)
            self._to_rgb = self._colour_conversion(first, quick)
        except BaseException:
            self._container.close()
            raise

    def __iter__(self) -> Iterator[Frame]:
        if self.info.kind == "image":
            first, self._first = self._first, None
            if first is not None:
                yield Frame(self._upright(first))
            return
        held: Frame | None = None
        for frame in self._timed():
            if held is not None:
                assert held.pts is not None
                assert frame.pts is not None
                held.duration = frame.pts - held.pts
                yield held
            held = frame
        if held is not None and held.pts is not None and held.duration is not None:
            held.duration = self._track.shown_for(held.pts, held.duration)
            yield held

    def count(self) -> int:
        """Of the frames that iterating would give; nothing is converted."""
        return sum(1 for _ in self.counting())

    def counting(self) -> Iterator[None]:
        """As often as there are frames."""
        self._first = None
        yield None
        if self.info.kind != "image":
            yield from (None for _ in self._decoded)

    def close(self) -> None:
        self._decoded.close()
        self._container.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_size(self, context: VideoCodecContext) -> None:
        # for what shows its size only when it is decoded
        context.options = {"max_pixels": str(self._most + _ALIGNMENT)}
        size = context.width, context.height
        if size[0] * size[1] > self._most:
            if self._memory is None or self._most == self._allowed:
                raise too_many_pixels(self._path, size, self._most)
            raise too_large(self._path, size, size[0] * size[1] * VIDEO_HELD_BYTES, self._memory)
        self._on_size(size[0] * size[1])

    @property
    def _too_large(self) -> str:
        return f"frames of more than {self._most / 1e6:.4g} megapixels are not read: they do not fit into memory"

    def _find_picture(self) -> VideoStream:
        picture = picture_stream(self._container)
        if picture is None:
            kinds = sorted({stream.type for stream in self._container.streams})
            raise InputError(f"{self._path}: holds no picture, only {' and '.join(kinds) or 'nothing'}; leave it out")
        if picture.codec_context is None:
            raise no_decoder(self._path)
        return picture

    def _decode(self) -> Generator[VideoFrame, None, None]:
        passed_over, lossy, damaged, count = 0, 0, 0, 0
        packets = self._container.demux(*([] if may_be_joined(self._container) else [self._picture]))
        while True:
            try:
                packet = next(packets, None)
                if packet is None:
                    break
                if packet.size and may_be_joined(self._container):
                    self._seams.shift(packet)
                if packet.stream.index != self._picture.index:  # stream_index says 0 of what flushes any decoder
                    continue
                self._track.see(packet)
                frames = self._picture.decode(packet)
            except (av.error.FFmpegError, OSError) as error:
                if isinstance(error, av.error.InvalidDataError) and count == 0 and passed_over < 1000:
                    passed_over += 1
                    continue
                raise breaks_after(self._path, count, error, "" if count else f"; {self._too_large}") from error
            if not count:
                self._first_packets.see(packet)
            lossy += packet.is_corrupt
            for frame in frames:
                count += 1
                damaged += frame.is_corrupt
                yield frame
        if passed_over and count:
            self.warnings.append(f"{passed_over} packets before the first whole frame could not be decoded")
        if lossy:
            self.warnings.append(f"{lossy} packets are damaged or cut off; frames may be missing")
        if damaged:
            self.warnings.append(f"{damaged} of {count} frames are damaged; kept as the decoder patched them")

    def _timed(self) -> Iterator[Frame]:
        """Frames with strictly increasing pts; the durations are still the decoder's own."""
        assert self.info.time_base is not None
        period = max(1, round(1 / ((self.info.frame_rate or Fraction(25)) * self.info.time_base)))
        reordered = bool(self._picture.codec_context.has_b_frames)
        clock = FrameClock(period, self._seams.of(self._picture.index), self._first_packets, reordered=reordered)
        interlaced = False
        while self._first is not None:
            frame = self._first
            interlaced = interlaced or frame.interlaced_frame
            pts = clock.place(frame.pts, frame.dts, frame.duration)
            yield Frame(self._upright(frame), pts, frame.duration or period)
            self._first = next(self._decoded, None)
        self.warnings += clock.warnings()
        if interlaced:
            self.warnings.append("interlaced; whole frames were read as they are, both fields woven")

    def _upright(self, frame: VideoFrame) -> np.ndarray:
        rgb = self._to_rgb(frame)
        if rgb.shape[:2] != self._stored_size:
            height, width = self._stored_size
            raise InputError(
                f"{self._path}: changes size mid-way, from {width}x{height} to {rgb.shape[1]}x{rgb.shape[0]}; "
                "split it, or scale it to one size first"
            )
        return self._orientation.apply(rgb)

    def _find_orientation(self, frame: VideoFrame) -> Orientation:
        try:
            side_data: Any = frame.side_data  # PyAV's stub knows one kind of it
            orientation = from_display_matrix(bytes(side_data["DISPLAYMATRIX"]))
        except KeyError:
            return UPRIGHT
        except ValueError:  # PyAV stumbles over side data newer than itself (EXIF, ...); this angle it reads on its own
            turn = -frame.rotation % 360
            orientation = Orientation(turn) if turn % 90 == 0 else None
        if orientation is None:
            self.warnings.append("rotation tag is not a multiple of 90 degrees; not applied")
        return orientation or UPRIGHT

    def _describe(self, first: VideoFrame) -> MediaInfo:
        container, picture = self._container, self._picture
        self._stored_size = (first.height, first.width)
        swapped = self._orientation.swaps_sides
        aspect = picture.sample_aspect_ratio or Fraction(1)
        still = is_still_format(container)
        if picture.duration is not None and picture.time_base is not None:
            duration: float | None = float(picture.duration * picture.time_base)
        else:
            duration = container.duration / 1e6 if container.duration is not None else None
        of_frame, of_stream = read_tags(first), read_tags(picture.codec_context)
        return MediaInfo(
            path=self._path,
            kind="image" if still else "video",
            width=first.height if swapped else first.width,
            height=first.width if swapped else first.height,
            rotation=self._orientation.rotation,
            mirrored=self._orientation.mirrored,
            sample_aspect_ratio=1 / aspect if swapped else aspect,
            pix_fmt=first.format.name,
            bits=first.format.components[0].bits,
            has_alpha=any(component.is_alpha for component in first.format.components),
            colour=Colour(
                of_frame.matrix or of_stream.matrix,
                of_frame.range or of_stream.range,
                of_frame.primaries or of_stream.primaries,
                of_frame.transfer or of_stream.transfer,
            ),
            container=container.format.name,
            codec=describe_stream(picture).codec,
            time_base=None if still else picture.time_base,
            frame_rate=None if still else picture.guessed_rate or picture.average_rate,
            frames=1 if still else picture.frames or None,
            duration=None if still else duration,
            streams=tuple(describe_stream(stream) for stream in other_streams(container)),
        )

    def _colour_conversion(self, first: VideoFrame, quick: bool) -> ToRgb:
        info = self.info
        try:
            to_rgb = ToRgb(info.colour, first.format, first.width, first.height, info.codec, quick=quick)
        except InputError as error:
            raise InputError(f"{self._path}: {error}") from error
        self.info = replace(info, colour=to_rgb.read_as)
        self.warnings += to_rgb.warnings
        if info.bits > 8:
            self.warnings.append(f"{info.bits}-bit values read as 8-bit")
        if info.has_alpha:
            self.warnings.append("transparency dropped")
        return to_rgb
