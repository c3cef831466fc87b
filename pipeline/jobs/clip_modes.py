"""The four ways of a clip through one side of a VAE. Which one it takes is decided here, and nowhere else in the jobs.

- *Frame by frame*: an image VAE. No frame knows of another; one at a time is in memory.
- *In steps*: a video VAE whose reference goes through a clip in chunks with caches (Wan, CogVideoX, ...). One chunk and
  the caches are in memory.
- *On demand*: a video VAE that normalises each pixel by itself (LTX). The engine works in strips of time, asks for
  frames when it gets to them, and gives frames as they are done. See ``on_demand``.
- *Whole*: any other video VAE. The clip and its latents are in memory.

An image on its way into a video VAE is a clip of one frame and goes whole: one frame has no use for caches, and nothing
to wait for. On its way out it goes as a clip does, but for *on demand*.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from tvae.pipeline.media.formats import Kind
from tvae.pipeline.models.calls import Side

if TYPE_CHECKING:
    from tvae.pipeline.models.streaming import ClipStream
    from tvae.pipeline.session.model import Model

__all__ = ["ClipMode", "Passage", "passage", "passages_there_and_back"]


class ClipMode(Enum):
    """See the module's docstring."""

    FRAME_BY_FRAME = "frame by frame"
    IN_STEPS = "in steps"
    ON_DEMAND = "on demand"
    WHOLE = "whole"


@dataclass(frozen=True)
class Passage:
    """How one clip goes through one side of a model."""

    mode: ClipMode
    stream: ClipStream | None = None
    """*In steps*: a new one, for this clip."""

    @property
    def resumes(self) -> bool:
        """Whether what is done of a clip can stay when the run is interrupted, and the next run goes on behind it."""
        return self.mode in (ClipMode.FRAME_BY_FRAME, ClipMode.IN_STEPS)


def passage(model: Model, side: Side, kind: Kind) -> Passage:
    """The way of a clip, or of an image as a clip of one frame."""
    if model.info.temporal_factor is None:
        return Passage(ClipMode.FRAME_BY_FRAME)
    image_in = kind == "image" and side == "encode"
    if not image_in and (stream := model.stream(side)) is not None:
        return Passage(ClipMode.IN_STEPS, stream)
    if kind == "video" and model.goes_by_frames:
        return Passage(ClipMode.ON_DEMAND)
    return Passage(ClipMode.WHOLE)


def passages_there_and_back(model: Model, kind: Kind) -> tuple[Passage, Passage]:
    """For a clip that goes through the encoder and on through the decoder.

    The encoder goes in steps only if the decoder does: another decoder needs all latents at once, and steps save none.
    """
    encode, decode = passage(model, "encode", kind), passage(model, "decode", kind)
    if encode.mode is ClipMode.IN_STEPS and decode.mode is not ClipMode.IN_STEPS:
        encode = Passage(ClipMode.WHOLE)
    return encode, decode
