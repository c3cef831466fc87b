"""Writing a video part by part, so that a run that was interrupted goes on from its last complete part.

No encoder's state can be kept, so each part has an encoder of its own and begins with a key frame; nothing of it refers
to another part. Parts are files of packets in a hidden folder beside the film; commit() puts them into the film, with
the sound, and removes the folder. Whether a film was interrupted or not, its parts are the same.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Self

from av.packet import Packet

from tvae.pipeline.errors import InputError, OutputError, TvaeError
from tvae.pipeline.files.atomic import write_error
from tvae.pipeline.files.own_folder import make_own_folder
from tvae.pipeline.media.encoder import Encoder, lone_encoder
from tvae.pipeline.media.film import Film
from tvae.pipeline.media.finishing import Finishing
from tvae.pipeline.media.formats import VideoFormat
from tvae.pipeline.media.frame_encoder import FrameEncoder
from tvae.pipeline.media.output_clock import OutputClock
from tvae.pipeline.media.packet_file import PacketFile, StoredPacket, read_payloads, read_table
from tvae.pipeline.media.part_folders import STATE, clear_parts, part_name, parts_folder
from tvae.pipeline.media.spec import Frame, PictureSpec, WriteOptions

__all__ = ["PartedVideoWriter"]

_log = logging.getLogger("tvae")


class PartedVideoWriter:
    """A Writer of videos (see VideoWriter) to which end_part() says where a part ends.

    Leaving the context without commit() is abort(), unless by an interruption (Ctrl-C, a full disk, or another failure
    that is not the input's): then the complete parts stay for the next run to adopt().
    """

    def __init__(self, path: Path, target: VideoFormat, like: PictureSpec, options: WriteOptions) -> None:
        self.path = path
        self.warnings: list[str] = []
        self._target, self._like, self._options = target, like, options
        self._clock = OutputClock(like, options)
        # what is wrong with the request shows before any work
        Film(path, target, like, options, self._clock, []).abort()
        self.folder = parts_folder(path, options.fingerprint)
        self.parts = 0
        """That are complete."""
        self._begun = 0
        self._part: _Part | None = None
        self._finishing = Finishing()
        self._open = True

    @property
    def state_path(self) -> Path:
        """Where whoever writes may keep what it needs to go on with; removed with the parts."""
        return self.folder / STATE

    def adopt(self, parts: int) -> bool:
        """Take over the first ``parts`` parts of an interrupted run, whose they are the caller must know.

        pass_over() must be told of each of their frames before write() goes on behind them. False, and nothing is taken
        over, where they are not all there, are damaged, or would be encoded otherwise now.
        """
        encoder = self._encoder()
        try:
            if any(_checked(self._name(number)) != self._setup(encoder, number) for number in range(parts)):
                return False
        except (OSError, ValueError):
            return False
        self.parts = self._begun = parts
        return True

    def pass_over(self, pts: int | None, duration: int | None) -> None:
        """A frame that is in the parts that were taken over."""
        self._clock.place(pts, duration, self.path)

    def write(self, frame: Frame) -> None:
        """Encode one frame; of the spec's size, later than the one before.

        Raises InputError when its timestamp does not increase, OutputError when the disk fails.
        """
        pts, duration = self._clock.place(frame.pts, frame.duration, self.path)
        try:
            if self._part is None:
                if not self._begun:
                    clear_parts(self.path)  # an older run's
                make_own_folder(self.folder)
                encoder, number = self._encoder(), self._begun
                setup = self._setup(encoder, number)
                self._part = _Part(self._name(number), self.path, encoder, setup, self._like, self._clock)
                self._begun += 1
            self._part.add(self._part.encoder.encode(frame.rgb, pts, duration))
        except OSError as error:
            raise write_error(self.path, error) from error

    def end_part(self, then: Callable[[], None] = lambda: None, *, beside: bool = False) -> None:
        """What was written since the last part is one, and stays if the run is interrupted. then: done once it is.

        beside: it is made complete while the next part is written, which takes a second encoder's memory. What goes
        wrong with it then comes out of a later call.
        """
        self._finishing.wait()
        if self._part is None:
            return
        part, self._part = self._part, None

        def finish() -> None:
            try:
                part.finish()
            except OSError as error:
                part.file.abort()
                raise write_error(self.path, error) from error
            except BaseException:
                part.file.abort()
                raise
            self.parts += 1
            then()

        if beside:
            self._finishing.begin(finish)
        else:
            finish()

    def commit(self) -> None:
        """Put all parts into the film and give it its name. Raises InputError when no frame was written."""
        self.end_part()
        self._finishing.wait()
        if not self.parts:
            raise InputError(f"{self.path}: there are no frames to write; check the input")
        film = Film(self.path, self._target, self._like, self._options, self._clock, self.warnings)
        try:
            if self._clock.delay:
                film.delay(self._clock.delay)
                self.warnings += self._clock.warnings
            for packet in self._joined():
                film.mux(packet)
            film.finish()
        except (OSError, ValueError) as error:
            if not self.state_path.exists():  # nobody could go on with the parts, which take room on a full disk
                self.abort()
            raise OutputError(
                f"cannot write {self.path}: putting it together from its parts failed ({error}); run again"
            ) from error
        finally:
            film.abort()
        self._open = False
        self._tidy()

    def abort(self) -> None:
        """Remove all parts; nothing after commit()."""
        if self._open:
            self._open = False
            self._finishing.leave()
            if self._part is not None:
                self._part.file.abort()
            self._tidy()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._finishing.leave()
        if self._part is not None:
            self._part.file.abort()
        damaged = isinstance(error, TvaeError) and not isinstance(error, OutputError)
        if not self.parts or error is None or damaged:
            self.abort()

    def _name(self, part: int) -> Path:
        return self.folder / part_name(part)

    def _encoder(self) -> Encoder:
        """One like the film's."""
        return lone_encoder(self._target, self._like, self._options, self._clock.time_base, self._clock.rate)

    def _setup(self, encoder: Encoder, number: int) -> str:
        """Of part ``number`` of this film: what a decoder must be told before the first packet, in which parts of one
        film cannot differ, and which part of what it is."""
        told = hashlib.sha256(encoder.context.extradata or b"").hexdigest()
        return hashlib.sha256(f"{self._options.fingerprint} {number} {told}".encode()).hexdigest()

    def _joined(self) -> Iterator[Packet]:
        """The packets of all parts, with decoding times."""
        files = [self._name(number) for number in range(self.parts)]
        delay = max(_reordered(read_table(file).packets) for file in files)
        times = _decoding_times((read_table(file).packets for file in files), delay)
        for file in files:
            table = read_table(file)
            for stored, payload, dts in zip(table.packets, read_payloads(file, table), times, strict=False):
                packet = Packet(payload)
                packet.time_base, packet.pts, packet.dts, packet.duration = (
                    self._clock.time_base,
                    stored.pts,
                    dts,
                    stored.duration,
                )
                packet.is_keyframe = stored.key
                yield packet

    def _tidy(self) -> None:
        """The same where the film is done or has failed already: that parts stay is no news beside that."""
        try:
            clear_parts(self.path)
        except OSError as error:
            _log.debug("parts left behind: %s", error)


class _Part:
    """A part in the making."""

    def __init__(
        self, name: Path, film: Path, encoder: Encoder, setup: str, like: PictureSpec, clock: OutputClock
    ) -> None:
        self.encoder = FrameEncoder(film, encoder, like, clock.time_base)
        self.file = PacketFile(name, setup)

    def add(self, packets: Sequence[Packet]) -> None:
        for packet in packets:
            self.file.add(packet)

    def finish(self) -> None:
        self.add(self.encoder.finish())
        self.file.finish()


def _checked(part: Path) -> str:
    """The setup of a part that is whole; OSError or ValueError where it is not."""
    table = read_table(part)
    for _ in read_payloads(part, table):
        pass
    return table.setup


def _reordered(packets: Sequence[StoredPacket]) -> int:
    """By how many packets some picture is decoded after its turn to be shown: frames that wait for it."""
    order = {pts: rank for rank, pts in enumerate(sorted(packet.pts for packet in packets))}
    return max(number - order[packet.pts] for number, packet in enumerate(packets))


def _decoding_times(parts: Iterator[Sequence[StoredPacket]], delay: int) -> Iterator[int]:
    """For each packet: the times of showing, in order, ``delay`` packets late; none is shown before it is decoded."""
    first = next(parts)
    start = min(packet.pts for packet in first)
    step = max(1, first[0].duration)
    yield from (start - step * ahead for ahead in range(delay, 0, -1))
    for part in chain([first], parts):
        yield from sorted(packet.pts for packet in part)
