"""Families whose reference sees a whole clip, so that strips may divide its time: where the frames of a side are.

The others keep strips of the height: Wan 2.1 and 2.2, Qwen-Image, CogVideoX, Magvit and SeedVR2 go in steps with caches
by their own reference (see ``streaming``), and Mochi's encoder attends over all of time at every level.
"""

from __future__ import annotations

from tvae.pipeline.models.calls import Frames
from tvae.pipeline.models.reference import Side

__all__ = ["frames_axis_of", "goes_by_frames"]

_IN_BATCH: dict[Side, Frames] = {"encode": Frames(0), "decode": Frames(0, "num_frames")}
_CLIP: dict[Side, Frames] = {"encode": Frames(), "decode": Frames()}
_ALONE: dict[Side, Frames] = {"encode": Frames(alone=True), "decode": Frames(alone=True)}
"""Of families that normalise every pixel by itself: nothing waits for the whole clip, frames go out as they come in."""
_FRAMES: dict[str, dict[Side, Frames]] = {
    "AutoencoderKLAllegro": _CLIP,
    "AutoencoderKLCosmos": _CLIP,
    "AutoencoderKLHunyuanVideo": _CLIP,
    "AutoencoderKLHunyuanVideo15": _CLIP,
    "AutoencoderKLLTX2Video": _ALONE,
    "AutoencoderKLLTXVideo": _ALONE,
    "AutoencoderKLTemporalDecoder": _IN_BATCH,
}


def frames_axis_of(class_name: str, side: Side) -> Frames | None:
    """Where a class of models has the frames of a clip, None for those that strips of time do not serve."""
    return _FRAMES.get(class_name, {}).get(side)


def goes_by_frames(class_name: str) -> bool:
    """Can a clip come and go frame by frame, in memory that does not grow with it?"""
    frames = frames_axis_of(class_name, "decode")
    return frames is not None and frames.alone
