"""The pixels of an image as uint8 RGB, converted in bands: beside what was decoded only the result is whole."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
from PIL import Image

from tvae.pipeline.errors import InputError
from tvae.pipeline.media.pillow_memory import rgb_of

__all__ = ["in_bands", "read_deep", "transparent"]

_BAND = 1 << 20
"""Pixels that are converted together."""


def transparent(picture: Image.Image) -> bool:
    """Whether it has an alpha channel, or a colour that stands for none."""
    return "A" in picture.getbands() or "transparency" in picture.info


def in_bands(picture: Image.Image) -> np.ndarray:
    """[H, W, 3] of a picture of any mode that is decoded; alpha is dropped."""
    if not transparent(picture) and (whole := rgb_of(picture)) is not None:
        return whole
    width, height = picture.size
    rgb, rows = np.empty((height, width, 3), np.uint8), _rows(width)
    for top in range(0, height, rows):
        band = picture.crop((0, top, width, min(height, top + rows)))
        if transparent(picture):
            band = band.convert("RGBA")  # straight to RGB Pillow warns about palettes
        rgb[top : top + rows] = np.asarray(band if band.mode == "RGB" else band.convert("RGB"))
    return rgb


def read_deep(path: Path, size: tuple[int, int]) -> tuple[np.ndarray, str]:
    """A 16-bit image of (width, height), each value v rounded to v / 257, and its pixel format: [H, W, 3], or [H, W] of
    a grey one. FFmpeg reads it, what it raises comes out."""
    # if it finds another size than Pillow, no more than that, and a little by which it aligns rows
    limit = {"max_pixels": str((size[0] + 128) * size[1])}
    with path.open("rb") as file, av.open(file, "r", options=limit) as container:
        container.streams.video[0].codec_context.options = limit
        frame = next(iter(container.decode(video=0)), None)
    if frame is None:
        raise InputError(f"{path}: the image is damaged (there is no picture in it); fetch it again")
    pix_fmt = frame.format.name
    if not pix_fmt.startswith(("gray16", "rgb48", "rgba64")):
        frame = frame.reformat(format="rgb48le")
    plane, channels = frame.planes[0], {"g": 1, "rgb4": 3, "rgba": 4}[_kind(frame.format.name)]
    values = np.frombuffer(memoryview(plane), ">u2" if frame.format.name.endswith("be") else "<u2")
    values = values.reshape(-1, plane.line_size // 2)[: frame.height, : frame.width * channels]
    narrow, rows = np.empty((frame.height, frame.width, min(channels, 3)), np.uint8), _rows(frame.width)
    for top in range(0, frame.height, rows):
        band = values[top : top + rows].astype(np.uint32).reshape(-1, frame.width, channels)[..., :3]
        narrow[top : top + rows] = (band + 128) // 257
    return narrow[..., 0] if channels == 1 else narrow, pix_fmt


def _kind(pix_fmt: str) -> str:
    return "g" if pix_fmt.startswith("gray") else pix_fmt[:4]


def _rows(width: int) -> int:
    return max(1, _BAND // width)
