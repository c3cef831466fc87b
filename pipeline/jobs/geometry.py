"""Size of a picture on its way into a VAE and back: resize, cut or pad to the VAE's grid; padding comes off on decode.

Frames are ``uint8 [H, W, 3]`` arrays. What is decided here for one item is kept beside its latents as a
:class:`tvae.pipeline.latents.Geometry`: resize, then crop, then pad by edge replication.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from tvae.pipeline.caches.pixels import split_alpha
from tvae.pipeline.errors import InputError
from tvae.pipeline.latents import Geometry

__all__ = [
    "ALIGNS",
    "FITS",
    "Align",
    "Fit",
    "Size",
    "plan_geometry",
    "prepare",
    "restore",
    "told",
]

Size = tuple[int, int]
"""(width, height) in pixels."""

Fit = Literal["contain", "cover", "stretch"]
"""How a picture meets ``--size``: *contain* scales it to lie inside, *cover* scales it to fill the size and cuts what
sticks out (centred), *stretch* ignores its proportions."""

Align = Literal["pad", "crop", "error"]
"""What happens to a size the VAE cannot represent: *pad* repeats the right and bottom edge, *crop* cuts to the next
smaller size (centred), *error* refuses the picture. For lengths of clips see ``lengths``."""

FITS: tuple[Fit, ...] = get_args(Fit)
ALIGNS: tuple[Align, ...] = get_args(Align)


def plan_geometry(
    source: Size, factor: int, size: Size | None = None, fit: Fit = "contain", align: Align = "pad"
) -> Geometry:
    """Geometry for a picture of ``source`` size and a VAE whose sides are multiples of ``factor``.

    Raises :class:`InputError` where ``align`` is *error* and a side does not divide, or *crop* and nothing is left.
    """
    resized, left, top, width, height = _fitted(source, size, fit) if size else (source, 0, 0, *source)
    over_x, over_y = width % factor, height % factor
    pad = (0, 0, 0, 0)
    if align == "error" and (over_x or over_y):
        raise InputError(
            f"{width}x{height} is not a multiple of {factor}, which this VAE needs; use --align pad or --align crop"
        )
    if align == "pad":
        pad = (0, 0, -width % factor, -height % factor)
    elif align == "crop":
        if width < factor or height < factor:
            raise InputError(f"{width}x{height} is smaller than the {factor}x{factor} this VAE needs; use --align pad")
        left, top = left + over_x // 2, top + over_y // 2
        width, height = width - over_x, height - over_y
    return Geometry(
        source_width=source[0],
        source_height=source[1],
        resized=resized if resized != source else None,
        crop=(left, top, width, height) if (width, height) != resized else None,
        pad=pad,
    )


def told(source: Size, factor: int, size: Size | None = None, fit: Fit = "contain", align: Align = "pad") -> list[str]:
    """A line on what ``align`` does to a picture that :func:`plan_geometry` takes, if it does anything."""
    width, height = _fitted(source, size, fit)[3:] if size else source
    over_x, over_y = width % factor, height % factor
    if not (over_x or over_y):
        return []
    taken = f"{width}x{height}, but this VAE takes multiples of {factor}"
    if align == "crop":
        return [f"{taken}: cropped to {width - over_x}x{height - over_y}, the middle of it"]
    edges = " and ".join(edge for edge, over in (("right", over_x), ("bottom", over_y)) if over)
    padded = f"{width + -width % factor}x{height + -height % factor}"
    return [f"{taken}: padded to {padded} by repeating its {edges} edge; decode removes the padding"]


def prepare(frame: np.ndarray, geometry: Geometry) -> np.ndarray:
    """uint8 ``[H, W, 3]`` of the source's size to the same of ``geometry.padded_size``. Scaling is Lanczos. With alpha
    ``[H, W, 4]``: colours come out as without it."""
    height, width = frame.shape[:2]
    if (width, height) != (geometry.source_width, geometry.source_height):
        raise InputError(
            f"frames change from {geometry.source_width}x{geometry.source_height} to {width}x{height}; "
            "split the video, or scale it to one size first"
        )
    if geometry.resized:
        frame = _scaled(frame, geometry.resized)
    if geometry.crop:
        left, top, width, height = geometry.crop
        frame = frame[top : top + height, left : left + width]
    left, top, right, bottom = geometry.pad
    if any(geometry.pad):
        frame = np.pad(frame, ((top, bottom), (left, right), (0, 0)), mode="edge")
    return np.ascontiguousarray(frame)


def restore(frame: np.ndarray, geometry: Geometry) -> np.ndarray:
    """Takes the padding off a frame: ``geometry.padded_size`` to ``geometry.size``."""
    left, top, _, _ = geometry.pad
    width, height = geometry.size
    return np.ascontiguousarray(frame[top : top + height, left : left + width])


def _scaled(frame: np.ndarray, size: Size) -> np.ndarray:
    """Colours and alpha each by itself: Pillow would weigh colours by the alpha beside them."""
    from PIL import Image

    parts = split_alpha(frame) if frame.shape[2] == 4 else (frame,)
    scaled = [np.asarray(Image.fromarray(part).resize(size, Image.Resampling.LANCZOS)) for part in parts]
    return np.dstack(scaled) if len(scaled) > 1 else scaled[0]


def _fitted(source: Size, size: Size, fit: Fit) -> tuple[Size, int, int, int, int]:
    """Size after scaling, and (left, top, width, height) of what is kept of it."""
    if fit == "stretch":
        return size, 0, 0, *size
    ratios = (size[0] / source[0], size[1] / source[1])
    scale = min(ratios) if fit == "contain" else max(ratios)
    width, height = (max(1, round(side * scale)) for side in source)
    if fit == "contain":
        return (width, height), 0, 0, width, height
    width, height = max(width, size[0]), max(height, size[1])
    return (width, height), (width - size[0]) // 2, (height - size[1]) // 2, *size
