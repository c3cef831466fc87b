"""Length of a clip on its way into a video VAE: what ``--align`` is for sizes, it is for time, too.

A video VAE takes ``lead`` + k * ``factor`` frames; one that takes latent frames in groups (see ``LatentGeometry``),
``lead`` frames and whole groups, or whole groups alone. Other clips get copies of their last frame (*pad*; decode
leaves them out, for they have no times), lose the frames at their end (*crop*), or are refused (*error*).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from tvae.pipeline.errors import InputError
from tvae.pipeline.jobs.geometry import Align
from tvae.pipeline.jobs.reading import Chunk

if TYPE_CHECKING:
    from tvae.pipeline.session.model_info import ModelInfo

__all__ = ["LengthFit", "frame_count", "missing_frames"]


def missing_frames(info: ModelInfo, frames: int) -> int:
    """How many frames a clip of ``frames`` >= 1 lacks to the next length that the VAE takes."""
    if info.temporal_factor is None:
        return 0
    period = info.temporal_factor * info.latent_group
    leads = {info.lead_frames} if info.latent_group == 1 else {info.lead_frames, 0}
    return min((lead - frames) % period for lead in leads)


def frame_count(info: ModelInfo, latents: int, begins: bool) -> int:
    """How many frames this many latent frames stand for that are decoded together. begins: they are a clip's first."""
    lead = info.lead_frames if begins and info.temporal_factor else 0
    if (latents - lead) % info.latent_group:
        lead = 0
    return lead + (latents - lead) * (info.temporal_factor or 1)


class LengthFit:
    """One clip's length, decided while its frames pass through: it may not be known before the last one.

    ``repeated`` and ``dropped`` say what was done to the end once all frames are through; ``told`` says it in words.
    """

    def __init__(self, info: ModelInfo, align: Align) -> None:
        self._info, self._align = info, align
        self.frames = self.repeated = self.dropped = 0

    def check(self, frames: int | None) -> None:
        """InputError where a clip of as many frames as its container claims is to be refused: before any work."""
        if self._align == "error" and frames:
            self._refuse(frames, "its container says it holds ")

    def through(self, frames: Iterable[Chunk]) -> Iterator[Chunk]:
        """Chunks of single frames, of a number that the VAE can represent; copies have no times.

        The frames that end up dropped are held back, less than a latent's or a group's. InputError for a length that is
        refused, and for a clip of which nothing would be left.
        """
        held: list[Chunk] = []
        for frame in frames:
            self.frames += 1
            held.append(frame)
            if self._align != "crop":
                yield held.pop()
            elif self._missing(self.frames) == 0:
                yield from held
                held.clear()
            last = frame
        missing = self._missing(self.frames)
        if missing and self._align == "error":
            self._refuse(self.frames)
        if missing and self._align == "crop":
            self.dropped = len(held)
            if self.dropped == self.frames:
                raise InputError(f"{_count(self.frames)}, fewer than this VAE needs ({self._rule}); use --align pad")
        elif missing:
            self.repeated = missing
            for _ in range(missing):
                yield Chunk(last.frames, [], [])

    @property
    def kept(self) -> int:
        """Frames that the results hold."""
        return self.frames - self.dropped

    @property
    def told(self) -> list[str]:
        """A line on what was done, if anything was."""
        if self.repeated:
            return [
                f"{_count(self.frames)}, but this VAE takes {self._rule}: the last one was repeated "
                f"{_times(self.repeated)}, which decode leaves out"
            ]
        if self.dropped:
            what = "the last one was" if self.dropped == 1 else f"the last {self.dropped} were"
            return [f"{_count(self.frames)}, but this VAE takes {self._rule}: {what} dropped"]
        return []

    def fitted(self, frames: int) -> int:
        """Frames that a clip of ``frames`` has once it is through; 0 for one of which nothing is left."""
        return self._shorter(frames) if self._align == "crop" else frames + self._missing(frames)

    @property
    def _rule(self) -> str:
        lead, group = self._info.lead_frames, self._info.latent_group
        multiple = f"a multiple of {(self._info.temporal_factor or 1) * group}"
        if group > 1:
            return f"{multiple}, or that and {lead}"
        return f"{lead} + {multiple}" if lead else multiple

    def _missing(self, frames: int) -> int:
        return missing_frames(self._info, frames)

    def _shorter(self, frames: int) -> int:
        """The next length below or at this one that the VAE takes; 0 where there is none."""
        return next((n for n in range(frames, 0, -1) if not self._missing(n)), 0)

    def _refuse(self, frames: int, source: str = "") -> None:
        """InputError if the VAE takes no clip of this length."""
        if missing := self._missing(frames):
            longer, shorter = frames + missing, self._shorter(frames)
            near = f"{shorter} or {longer}" if shorter else str(longer)
            raise InputError(
                f"{source}{_count(frames)}, but this VAE takes {self._rule}, such as {near}; "
                "use --align pad or --align crop"
            )


def _count(frames: int) -> str:
    return f"{frames} frame{'' if frames == 1 else 's'}"


def _times(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{number} times")
