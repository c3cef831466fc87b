"""The pixels of an image as uint8 RGB, and its alpha where that is wanted, converted in bands: beside what was decoded
only the result is whole."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
from PIL import Image

from tvae.pipeline.errors import InputError
from tvae.pipeline.media.pillow_memory import rgb_of

__all__ = ["in_bands", "read_deep", "transparent"]

_BAND = 1 << 17
"""Pixels that are converted together: larger bands are no faster, and in memory beside the picture."""
_CHANNELS = {"gray16": 1, "ya16": 2, "rgb48": 3, "rgba64": 4}
"""Of FFmpeg's formats of 16-bit values that lie pixel by pixel; the last of 2 and of 4 is alpha."""

_WITH_ALPHA = {"LA", "La", "PA", "RGBA", "RGBa"}
"""Pillow's modes; the A of LAB is a colour."""


def transparent(picture: Image.Image) -> bool:
    """Whether it has an alpha channel, or a colour that stands for none."""
    return picture.mode in _WITH_ALPHA or "transparency" in picture.info


def in_bands(picture: Image.Image, mask: Image.Image | None = None) -> np.ndarray:
    """[H, W, 3] of a picture of any mode that is decoded, its own alpha dropped. mask: a transparent picture of the
    same size, whose alpha comes fourth: [H, W, 4]."""
    if mask is None and not transparent(picture) and (whole := rgb_of(picture)) is not None:
        return whole
    width, height = picture.size
    pixels, rows = np.empty((height, width, 3 if mask is None else 4), np.uint8), _rows(width)
    for top in range(0, height, rows):
        box = (0, top, width, min(height, top + rows))
        band = picture.crop(box)
        if transparent(picture):
            band = band.convert("RGBA")  # straight to RGB Pillow warns about palettes
        pixels[top : top + rows, :, :3] = np.asarray(band if band.mode == "RGB" else band.convert("RGB"))
        if mask is not None:
            pixels[top : top + rows, :, 3] = np.asarray(mask.crop(box).convert("RGBA").getchannel("A"))
    return pixels


def read_deep(path: Path, size: tuple[int, int], *, alpha: bool = False) -> tuple[np.ndarray, str]:
    """A 16-bit image of (width, height), each value v rounded to v / 257, and its pixel format: [H, W, 3], or [H, W] of
    a grey one; with ``alpha`` also [H, W, 4] and [H, W, 2] of those that have it. FFmpeg reads it, what it raises comes
    out."""
    # if it finds another size than Pillow, no more than that, and a little by which it aligns rows
    limit = {"max_pixels": str((size[0] + 128) * size[1])}
    with path.open("rb") as file, av.open(file, "r", options=limit) as container:
        container.streams.video[0].codec_context.options = limit
        frame = next(iter(container.decode(video=0)), None)
    if frame is None:
        raise InputError(f"{path}: the image is damaged (there is no picture in it); fetch it again")
    pix_fmt = frame.format.name
    if not pix_fmt.startswith((*_CHANNELS,)):
        wanted = alpha and any(one.is_alpha for one in frame.format.components)
        frame = frame.reformat(format="rgba64le" if wanted else "rgb48le")
    plane, channels = frame.planes[0], _CHANNELS[frame.format.name.removesuffix("le").removesuffix("be")]
    values = np.frombuffer(memoryview(plane), ">u2" if frame.format.name.endswith("be") else "<u2")
    values = values.reshape(-1, plane.line_size // 2)[: frame.height, : frame.width * channels]
    kept = channels if alpha else channels - (channels + 1) % 2
    narrow, rows = np.empty((frame.height, frame.width, kept), np.uint8), _rows(frame.width)
    for top in range(0, frame.height, rows):
        band = values[top : top + rows].astype(np.uint32).reshape(-1, frame.width, channels)[..., :kept]
        narrow[top : top + rows] = (band + 128) // 257
    return narrow[..., 0] if kept == 1 else narrow, pix_fmt


def _rows(width: int) -> int:
    return max(1, _BAND // width)
