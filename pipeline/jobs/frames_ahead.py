"""A clip's frames, which a thread reads before the clip has its turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from tvae.pipeline.jobs.busy import CLIP_READ
from tvae.pipeline.jobs.context import Context
from tvae.pipeline.jobs.queues import prefetched
from tvae.pipeline.jobs.reading import Chunk, Source

__all__ = ["frames_ahead"]

FEW_BYTES = 128 << 20
"""Of frames that wait beside those of the clip before: as many as wait between two threads, of 2560x1440."""


@contextmanager
def frames_ahead(source: Source, context: Context) -> Iterator[Callable[[], Iterator[Chunk]]]:
    """What gives the frames, once it is the clip's turn. Until then so many are read as wait between two threads, where
    they are few bytes."""
    info = source.reader.info
    with ExitStack() as reading:

        def begin() -> Iterator[Chunk]:
            frames = context.busy.during(CLIP_READ, source.frames())
            return reading.enter_context(prefetched(frames, context.queue_frames))

        few = 3 * info.width * info.height * context.queue_frames <= FEW_BYTES
        begun = begin() if few else None
        yield lambda: begin() if begun is None else begun
