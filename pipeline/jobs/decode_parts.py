"""A decoded clip's parts: where each ends, what is kept with it, and how the next run goes on behind the last."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from tvae.pipeline.jobs.checkpoint import Checkpoint, Checkpoints
from tvae.pipeline.media import PartedVideoWriter

if TYPE_CHECKING:
    from tvae.pipeline.models.streaming import ClipStream

__all__ = ["PART_FRAMES", "DecodeParts", "Ends"]

Ends = Callable[[int], Callable[[], None] | None]
"""Of the next chunk, of so many frames: see ``DecodeParts.reached``."""

PART_FRAMES = 128
"""At least these make a part. Each begins with a key frame; encoders put one in as often by themselves."""


class DecodeParts:
    """Beside the loop that computes; ``stream`` is None for an image VAE, whose frames know nothing of each other.
    beside: see ``PartedVideoWriter.end_part``."""

    def __init__(
        self, writer: PartedVideoWriter, fingerprint: str, stream: ClipStream | None, *, beside: bool = False
    ) -> None:
        self._writer, self._stream, self._beside = writer, stream, beside
        self._checkpoints = Checkpoints(writer.state_path, fingerprint)
        self._parts = self._end = 0

    def begin(self) -> Checkpoint:
        """Goes back to where an interrupted run stood, if there was one, else to the beginning."""
        found = self._checkpoints.read()
        if found is None or not self._writer.adopt(found.parts):
            return Checkpoint(0, 0, 0)
        if self._stream is not None:
            self._stream.restore(found.caches)
        self._parts, self._end = found.parts, found.frames
        return found

    def counted(self, start: Checkpoint) -> Ends:
        """``reached`` of one chunk after the other, behind those of the start; told how many frames each has."""
        frames, chunks = start.frames, start.chunks

        def ends(more: int) -> Callable[[], None] | None:
            nonlocal frames, chunks
            frames, chunks = frames + more, chunks + 1
            return self.reached(frames, chunks)

        return ends

    def reached(self, frames: int, chunks: int) -> Callable[[], None] | None:
        """What is to be done once the first ``frames`` frames, of so many chunks, are written, if a part ends there.
        The stream has begun the last of them and no other."""
        if frames - self._end < PART_FRAMES:
            return None
        self._parts, self._end = self._parts + 1, frames
        caches = self._checkpoints.caches_of(self._stream)
        if caches is None:
            return partial(self._writer.end_part, beside=self._beside)
        keep = partial(self._checkpoints.write, Checkpoint(self._parts, frames, chunks, caches))
        return partial(self._writer.end_part, keep, beside=self._beside)
