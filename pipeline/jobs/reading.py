"""The source side of encode and roundtrip: an opened image or video as prepared chunks of frames."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import av.error
import numpy as np

from tvae.pipeline.caches import trainer_named
from tvae.pipeline.errors import InputError
from tvae.pipeline.files.tar_members import Member
from tvae.pipeline.jobs.geometry import plan_geometry, prepare, told
from tvae.pipeline.jobs.job import Job
from tvae.pipeline.jobs.remote.fetching import local_copy
from tvae.pipeline.jobs.scaling_room import check_scaling, reading_memory, room_to_scale
from tvae.pipeline.latents import Geometry
from tvae.pipeline.media import Reader
from tvae.pipeline.media.container import reason
from tvae.pipeline.media.decoders import pick_decoder
from tvae.pipeline.media.formats import Kind
from tvae.pipeline.media.sandbox import Sandbox
from tvae.pipeline.stores import RemoteFile

__all__ = ["Chunk", "Source", "gathered", "kind_of", "open_source", "state_of"]


@dataclass
class Chunk:
    """Frames that go through the VAE together, uint8 ``[H, W, 3]`` of the padded size, and their times. Of an image
    whose alpha the job wants, and which has it, ``[H, W, 4]``.

    Copies of the last frame that fill a clip up (see ``lengths``) come last and have no times.
    """

    frames: list[np.ndarray]
    pts: list[int | None]
    durations: list[int | None]

    @property
    def repeated(self) -> int:
        """How many such copies there are."""
        return len(self.frames) - len(self.pts)


@dataclass
class Source:
    """One input, opened; ``geometry`` says what :meth:`frames` does to them.

    ``told``: a line on what is done to their size because the VAE cannot represent it, if anything is.
    """

    reader: Reader
    geometry: Geometry
    told: list[str]
    path: Path
    opened_as: tuple[int, ...]
    """What told the file from others when it was opened."""
    sandbox: Sandbox
    job: Job

    def check_unchanged(self) -> None:
        """InputError where another file stands there by now: a clip is read several times, and its sound would be
        another's than its picture."""
        with blame_input():
            if state_of(self.path) != self.opened_as:
                raise InputError("it changed while it was read; run again")

    def check_clip(self, name: Path) -> None:
        """InputError for an image of this name. One of this machine is known when it is looked up; one of a store is
        not fetched then where its name is a video's."""
        if self.reader.info.kind != "video":
            raise InputError(f"{name} is an image, and is called like a video; rename it")

    def frames(self) -> Iterator[Chunk]:
        """Chunks of one frame. InputError for what is damaged or holds no frame."""
        count = 0
        with blame_input():
            for frame in self.reader:
                count += 1
                yield Chunk([self._prepared(frame.rgb)], [frame.pts], [frame.duration])
        if count == 0:
            raise InputError("there is no frame in it")

    def _prepared(self, rgb: np.ndarray) -> np.ndarray:
        if self.geometry.resized is None:
            return prepare(rgb, self.geometry)
        size = rgb.shape[1], rgb.shape[0]
        with room_to_scale(self.path, size, self.geometry.resized, "lanczos", self.job):
            return prepare(rgb, self.geometry)

    def count(self) -> int:
        """How many frames there are. It takes decoding them all: containers are wrong, or do not say."""
        with blame_input():
            info = self.reader.info
            return self.sandbox.count_frames(
                info.path, info.width * info.height
            )  # it has been opened: its size is allowed


def gathered(frames: Iterable[Chunk]) -> Chunk:
    """All of them in one."""
    whole = Chunk([], [], [])
    for one in frames:
        whole.frames += one.frames
        whole.pts += one.pts
        whole.durations += one.durations
    return whole


@contextmanager
def open_source(
    path: Path,
    job: Job,
    factor: int,
    sandbox: Sandbox,
    hold: Callable[[int], None] | None = None,
    member: Member | RemoteFile | None = None,
) -> Iterator[Source]:
    """Opens an image or a video for a VAE whose sides are multiples of ``factor``. hold: see ``open_reader``. member:
    see ``Found``."""
    if member is not None:
        with _copied(path, member, job, waits=hold is not None) as copy:
            if sandbox.distrusts(path):
                sandbox.distrust(copy)
            with open_source(copy, job, factor, sandbox, hold) as source:
                yield source
        return
    with blame_input():
        opened_as = state_of(path)
        trainer = None if job.cache is None else trainer_named(job.cache.trainer)
        alpha = job.alpha == "keep"
        if job.cache is not None and trainer is not None:
            alpha = job.cache.alpha_mask or trainer.takes_alpha
        quick = trainer is not None and trainer.quick_colours
        decoder = None if trainer is None or trainer.decoder is None else pick_decoder()
        how = {"alpha": alpha, "quick": quick}
        reader = sandbox.open_reader(path, job.max_pixels, hold, reading_memory(job), decoder=decoder, **how)
    with reader:
        shape = (factor, job.size) if job.cache is None else (1, None)  # a cache has sizes of its own
        wanted = ((reader.info.width, reader.info.height), *shape, job.fit, job.align)
        geometry = plan_geometry(*wanted)
        if geometry.resized is not None:
            check_scaling(path, wanted[0], geometry.resized, "lanczos", job)
        yield Source(reader, geometry, told(*wanted), path, opened_as, sandbox, job)


def state_of(path: Path) -> tuple[int, ...]:
    """What tells a file from what it was before, or from another in its place."""
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


@contextmanager
def _copied(path: Path, member: Member | RemoteFile, job: Job, *, waits: bool) -> Iterator[Path]:
    """A copy for as long as it is read; what is wrong with it is said of ``path``. waits: see ``local_copy``."""
    with ExitStack() as stack:
        with blame_input():
            copy = stack.enter_context(local_copy(member, job.spill, waits=waits))
        try:
            yield copy
        except InputError as error:
            raise InputError(str(error).replace(str(copy), str(path))) from error


def kind_of(path: Path, job: Job, sandbox: Sandbox, member: Member | RemoteFile | None = None) -> Kind:
    """By content. InputError for what is no media. member: see ``Found``."""
    if member is not None:
        with _copied(path, member, job, waits=True) as copy:
            return kind_of(copy, job, sandbox)
    with blame_input(), sandbox.open_reader(path, job.max_pixels, memory=reading_memory(job)) as reader:
        return reader.info.kind


@contextmanager
def blame_input() -> Iterator[None]:
    """What the system and FFmpeg raise over a file is this input's failure: lost, closed, damaged, too large to hold.

    Readers tell what they know of as InputError themselves. Anything else is a mistake of ours and passes.
    """
    try:
        yield
    except (OSError, MemoryError, av.error.FFmpegError) as error:
        raise InputError(f"cannot be read: {reason(error)}") from error
