"""Pictures in linear light (OpenEXR, Radiance) to sRGB, which VAEs have learned from."""

from __future__ import annotations

from typing import Any

import numpy as np
from av.video.format import VideoFormat
from av.video.frame import VideoFrame

from tvae.pipeline.media.spec import Colour

__all__ = ["is_linear", "srgb_of"]

_PLANES = {"gbrpf": (2, 0, 1), "gbrapf": (2, 0, 1), "grayf": (0, 0, 0)}
"""Where red, green and blue lie, in the order in which FFmpeg has the planes of a picture of floats."""
_TYPES = {"16le": np.float16, "32le": np.float32}
_ROWS = 64
"""Of a picture that are converted at a time: floats take sixteen times the room of the result."""


def is_linear(colour: Colour, pixels: VideoFormat, codec: str) -> bool:
    """Are these floats linear light? FFmpeg tags OpenEXR's; Radiance's (``hdr``) never are anything else."""
    return (
        pixels.name[:-4] in _PLANES and pixels.name[-4:] in _TYPES and (colour.transfer == "linear" or codec == "hdr")
    )


def srgb_of(frame: VideoFrame) -> np.ndarray:
    """uint8 [H, W, 3], by the curve of IEC 61966-2-1. What is brighter than 1 is 1; what is no number is black."""
    name = frame.format.name
    kind, order = _TYPES[name[-4:]], _PLANES[name[:-4]]
    stored: list[Any] = [np.frombuffer(memoryview(plane), kind) for plane in frame.planes]
    planes = [stored[n].reshape(frame.height, -1)[:, : frame.width] for n in order]
    rgb = np.empty((frame.height, frame.width, 3), np.uint8)
    for top in range(0, frame.height, _ROWS):
        light = np.stack([plane[top : top + _ROWS] for plane in planes], -1).astype(np.float32)
        light = np.nan_to_num(light, nan=0.0, posinf=1.0, neginf=0.0).clip(0, 1)
        value = np.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055)
        rgb[top : top + _ROWS] = np.rint(255 * value)
    return rgb
