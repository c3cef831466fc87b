"""The source side of encode and roundtrip: an opened image or video as prepared chunks of frames."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from tvae.pipeline.errors import InputError, TvaeError
from tvae.pipeline.jobs.geometry import plan_geometry, prepare
from tvae.pipeline.jobs.job import Job
from tvae.pipeline.latents import Geometry
from tvae.pipeline.media import Reader, open_reader, probe

__all__ = ["Chunk", "Source", "kind_of", "open_source"]


@dataclass
class Chunk:
    """Frames that go through the VAE together, uint8 ``[H, W, 3]`` of the padded size, and their times."""

    frames: list[np.ndarray]
    pts: list[int | None]
    durations: list[int | None]


@dataclass
class Source:
    """One input, opened; ``geometry`` says what :meth:`chunks` does to its frames."""

    reader: Reader
    geometry: Geometry

    def chunks(self, whole: bool) -> Iterator[Chunk]:
        """Chunks of one frame, or one of the whole clip. InputError for what is damaged or holds no frame."""
        gathered, count = Chunk([], [], []), 0
        with blame_input():
            for frame in self.reader:
                count += 1
                gathered.frames.append(prepare(frame.rgb, self.geometry))
                gathered.pts.append(frame.pts)
                gathered.durations.append(frame.duration)
                if not whole:
                    yield gathered
                    gathered = Chunk([], [], [])
        if count == 0:
            raise InputError("there is no frame in it")
        if whole:
            yield gathered


@contextmanager
def open_source(path: Path, job: Job, factor: int) -> Iterator[Source]:
    """Opens an image or a video for a VAE whose sides are multiples of ``factor``."""
    with blame_input():
        reader = open_reader(path)
    with reader:
        size = (reader.info.width, reader.info.height)
        yield Source(reader, plan_geometry(size, factor, job.size, job.fit, job.align))


def kind_of(path: Path) -> Literal["image", "video"]:
    """By content. InputError for what is no media."""
    with blame_input():
        return probe(path).kind


@contextmanager
def blame_input() -> Iterator[None]:
    """Whatever a decoder throws over damaged media is this input's failure and not ours."""
    try:
        yield
    except TvaeError:
        raise
    except Exception as error:
        raise InputError(f"cannot be read: {error}") from error
