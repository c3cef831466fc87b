"""Pixels of a bucket: images scaled and cut as trainers do it."""

from __future__ import annotations

import numpy as np

from tvae.pipeline.caches.area import shrunk_by_area
from tvae.pipeline.caches.linear import resized_linearly
from tvae.pipeline.caches.spec import Framing

__all__ = ["apart", "framed", "over_white"]


def framed(rgb: np.ndarray, framing: Framing) -> np.ndarray:
    """uint8 [H, W, 3] of an image to uint8 [h, w, 3] of its bucket, contiguous; with alpha [H, W, 4] to [h, w, 4].
    float32 in [-1, 1] of a trainer that scales floats by *cubic*, see ``smooth_pixels``.

    Pillow weighs colours by alpha where it changes a size; OpenCV does not.
    """
    if framing.filter == "cubic":
        from tvae.pipeline.caches.smooth import smooth_pixels  # dry runs do without torch

        return smooth_pixels(rgb, framing)
    if framing.resized != (rgb.shape[1], rgb.shape[0]):
        if framing.filter == "area":
            rgb = shrunk_by_area(rgb, framing.resized)
        elif framing.filter == "linear":
            rgb = resized_linearly(rgb, framing.resized)
        else:
            from PIL import Image

            kind = Image.Resampling.LANCZOS if framing.filter == "lanczos" else Image.Resampling.BICUBIC
            rgb = np.asarray(Image.fromarray(rgb).resize(framing.resized, kind))
    left, top, width, height = framing.crop
    return np.ascontiguousarray(rgb[top : top + height, left : left + width])


def over_white(pixels: np.ndarray) -> np.ndarray:
    """uint8 [H, W, 4] to [H, W, 3], rounded as Pillow's ``alpha_composite`` rounds."""
    from PIL import Image

    canvas = Image.new("RGBA", (pixels.shape[1], pixels.shape[0]), (255, 255, 255))
    canvas.alpha_composite(Image.fromarray(pixels))
    return np.asarray(canvas.convert("RGB"))


def apart(pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of ``framed``: colours [h, w, 3], contiguous, and alpha [h, w], opaque where there is none."""
    alpha = pixels[..., 3] if pixels.shape[2] == 4 else np.full(pixels.shape[:2], 255, np.uint8)
    return np.ascontiguousarray(pixels[..., :3]), np.ascontiguousarray(alpha)
