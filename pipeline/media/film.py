"""A video file in the making: the picture's stream, and the source's other streams in step with it."""

from __future__ import annotations

import contextlib
import math
from fractions import Fraction
from pathlib import Path

import av.error
from av.container import OutputContainer
from av.packet import Packet

from tvae.pipeline.files.atomic import discard, publish, write_error
from tvae.pipeline.media.atomic import reserve
from tvae.pipeline.media.container import create_container, open_container, picture_stream
from tvae.pipeline.media.encoder import add_encoder
from tvae.pipeline.media.fingerprint import mark_video
from tvae.pipeline.media.formats import MP4, VideoFormat
from tvae.pipeline.media.last_frame import TrackEnd
from tvae.pipeline.media.output_clock import MAX_TIMESCALE, OutputClock
from tvae.pipeline.media.spec import PictureSpec, WriteOptions
from tvae.pipeline.media.stream_mux import StreamMuxer
from tvae.pipeline.media.tags import ClipTags, lost_tags, put_chapters, put_tags

__all__ = ["Film"]


class Film:
    """Grows in a temporary file beside ``path``; finish() gives it its name.

    ``encoder`` is open and belongs to the picture's stream; whoever uses it hands its packets to mux(). ``warnings``
    takes what the file cannot hold. Raises UsageError or InputError as open_writer does, OutputError for a
    disk that fails.
    """

    def __init__(
        self,
        path: Path,
        target: VideoFormat,
        like: PictureSpec,
        options: WriteOptions,
        clock: OutputClock,
        warnings: list[str],
    ) -> None:
        self.path, self._target, self._clock = path, target, clock
        self._container: OutputContainer | None = None
        self._streams = StreamMuxer(options.audio, warnings)
        self._tags, self._warnings = options.tags or ClipTags(), warnings
        self._track_end = TrackEnd() if target.iso else None
        self._temporary = reserve(path)
        self._begins: Fraction | None = None
        self._early = False
        self._finished = False
        try:
            self._open(like, options, warnings)
        except (av.error.FFmpegError, OSError) as error:
            self.abort()
            raise write_error(path, error) from error
        except BaseException:
            self.abort()
            raise

    def _open(self, like: PictureSpec, options: WriteOptions, warnings: list[str]) -> None:
        target, clock = self._target, self._clock
        timescales = {}
        if target.iso:
            own = clock.time_base.denominator
            common = math.lcm(own, *self._streams.timescales())
            # the movie's own scale counts the delays before each stream starts
            timescales = {
                "video_track_timescale": str(own),
                "movie_timescale": str(common if common <= MAX_TIMESCALE else own),
            }
        self._container = create_container(self._temporary, target.name, timescales)
        self.stream, self.encoder = add_encoder(self._container, target, like, options, clock.time_base, clock.rate)
        put_tags(self._container, self.stream, self._tags, clock.rate)
        if options.fingerprint is not None:
            mark_video(self._container.metadata, self.stream.metadata, options.fingerprint)
        first = self._streams.attach(self._container)
        self._container.start_encoding()
        self._container.mux(first)
        timed = [
            name for name, there in (("sound", not self._streams.empty), ("chapters", self._tags.chapters)) if there
        ]
        if options.fps is not None and timed:
            warnings.append(f"the picture runs at {options.fps} frames a second now, {' and '.join(timed)} as before")
        keep = f"write {MP4.suffixes[0]} to keep"
        if like.sample_aspect_ratio != 1 and not self.encoder.keeps_aspect:
            warnings.append(f"pixel aspect {like.sample_aspect_ratio} is lost in {target.name}; {keep} it")
        unit = self.stream.time_base
        if unit is not None and (clock.time_base / unit).denominator != 1:
            warnings.append(f"timestamps rounded to {unit} s, all that {target.name} keeps; {keep} them exact")

    def delay(self, seconds: Fraction) -> None:
        """Start the other streams so much later; before the first packet."""
        self._streams.delay(seconds)

    def mux(self, packet: Packet) -> None:
        """The picture's next packet, its times in the clock's time base; what starts before it goes before it."""
        due = packet if self._track_end is None else self._track_end.passed(packet)
        if due is not None:
            self._mux_in_turn(due)

    def _mux_in_turn(self, packet: Packet) -> None:
        assert self._container is not None
        assert packet.pts is not None
        if self._begins is None:
            self._begins, self._early = packet.pts * self._clock.time_base, self._streams.early
        packet.stream = self.stream
        start = packet.dts if packet.dts is not None else packet.pts
        try:
            self._streams.mux_until(float(start * self._clock.time_base))
            self._container.mux_one(packet)
        except (av.error.FFmpegError, OSError) as error:
            raise write_error(self.path, error) from error

    def finish(self) -> None:
        """All that is left of the other streams; then the file has its name."""
        assert self._container is not None
        last = self._track_end.last() if self._track_end is not None else None
        if last is not None:
            self._mux_in_turn(last)
        try:
            self._streams.finish()
            put_chapters(self._container, self._tags.chapters, self._clock.delay)
            self._container.close()
            if self._early and not self._target.iso:
                self._tell_if_moved()
            if self._tags:
                self._warnings += lost_tags(self._temporary, self._target.name, self._tags)
            publish(self._temporary, self.path)
        except (av.error.FFmpegError, OSError) as error:
            raise write_error(self.path, error) from error
        self._finished = True

    def _tell_if_moved(self) -> None:
        """FFmpeg moves all streams where a sound begins before zero and does not say that this is not heard."""
        with open_container(self._temporary) as container:
            picture = picture_stream(container)
            packet = None if picture is None else next(container.demux(picture))
        if packet is None or packet.pts is None or packet.time_base is None or self._begins is None:
            return
        moved = packet.pts * packet.time_base - self._begins
        if moved > packet.time_base:
            self._warnings.append(
                f"sound begins before zero, where {self._target.name} has nothing; all of it was moved by "
                f"{float(moved):.3g} s; write {MP4.suffixes[0]} to keep the times"
            )

    def abort(self) -> None:
        """Remove the temporary file, unless it has its name; always to be called. An interruption comes out of it, and
        leaves no file either."""
        try:
            self._streams.close()
            if not self._finished and self._container is not None:
                with contextlib.suppress(av.error.FFmpegError, OSError, ValueError):  # nobody will read its trailer
                    self._container.close()
        finally:
            if not self._finished:
                self._finished = True
                discard(self._temporary)
