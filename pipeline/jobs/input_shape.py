"""The shape of what a model is given for a picture or a clip of some size."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tvae.pipeline.jobs.lengths import missing_frames

if TYPE_CHECKING:
    from tvae.pipeline.models.calls import Side
    from tvae.pipeline.session.model_info import ModelInfo

__all__ = ["Extent", "input_shape"]


class Extent(NamedTuple):
    """Of a picture (one frame) or a clip, in pixels and frames."""

    height: int
    width: int
    frames: int


def input_shape(info: ModelInfo, extent: Extent, side: Side) -> tuple[int, ...]:
    """[1, C, (T,) H, W], picture and clip padded as encode pads them."""
    height, width, frames = extent
    h, w = -(-height // info.spatial_factor), -(-width // info.spatial_factor)
    channels = info.latent_channels if side == "decode" else info.in_channels
    if side == "encode":
        h, w = h * info.spatial_factor, w * info.spatial_factor
    if info.temporal_factor is None:
        return 1, channels, h, w
    frames += missing_frames(info, frames)
    return 1, channels, -(-frames // info.temporal_factor) if side == "decode" else frames, h, w
