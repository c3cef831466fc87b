"""Pixels of a bucket: images scaled and cut as trainers do it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tvae.pipeline.caches.spec import Framing, Size

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["framed", "over_white", "resized_linearly", "shrunk_by_area", "split_alpha"]

_NONE = 1e-3
"""Parts of a pixel up to this size OpenCV leaves out."""
_AREA_BLOCK = 1 << 19
"""Values of a block of rows that are averaged at once."""
_BITS = 11
"""Bits of a weight, which is a whole number."""
_LINEAR_BLOCK = 1 << 18
"""Values of a block of rows that are interpolated at once."""
_CUBIC_BLOCK = 1 << 20
"""Pixels of a block of rows or columns that are interpolated at once."""


def framed(rgb: np.ndarray, framing: Framing) -> np.ndarray:
    """Scale and cut an image, uint8 [H, W, 3 or 4], to its bucket, uint8 [h, w, 3 or 4], contiguous.

    By *cubic* the result is float32 [h, w, 3] in [-1, 1]. Pillow weighs colours by alpha where it changes a size;
    OpenCV does not.
    """
    if framing.filter == "cubic":
        return _cubic_pixels(rgb, framing)
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
    """Lay uint8 [H, W, 4] over white, [H, W, 3], rounded as Pillow's ``alpha_composite`` rounds."""
    from PIL import Image

    canvas = Image.new("RGBA", (pixels.shape[1], pixels.shape[0]), (255, 255, 255))
    canvas.alpha_composite(Image.fromarray(pixels))
    return np.asarray(canvas.convert("RGB"))


def split_alpha(pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Split pixels into colours [h, w, 3] and alpha [h, w], contiguous; opaque without alpha."""
    alpha = pixels[..., 3] if pixels.shape[2] == 4 else np.full(pixels.shape[:2], 255, np.uint8)
    return np.ascontiguousarray(pixels[..., :3]), np.ascontiguousarray(alpha)


def shrunk_by_area(rgb: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Shrink uint8 [H, W, C] to (width, height) as OpenCV's INTER_AREA, to the bit (``imgproc/src/resize.cpp``, 4.10).

    Each new pixel is the mean of the area that it covers; pixels at its border count by the part that is inside. Sums
    are float32 and added in OpenCV's order: along a row first, then down. Blocks of rows are large: each operation of
    NumPy lets other threads in and then waits for its turn, so threads that read pictures side by side start few.
    """
    height, width, channels = rgb.shape
    if size[0] > width or size[1] > height:
        raise ValueError(f"{width}x{height} pixels cannot be averaged to {size[0]}x{size[1]}")
    across, down = _Parts.of(width, size[0]), _Parts.of(height, size[1])
    columns = [(first[:, None] * channels + np.arange(channels)).reshape(-1) for first in across.places]
    weights = [one.repeat(channels) for one in across.weights]
    flat = rgb.reshape(height, width * channels)
    whole = across.whole * down.whole  # pixels of every area; 0 where some are divided
    found = np.empty((size[1], size[0] * channels), np.uint8)
    rows = max(1, int(_AREA_BLOCK * size[1] // (height * width * channels)))
    for top in range(0, size[1], rows):
        part = slice(top, top + rows)
        first, last = int(down.places[:, part].min()), int(down.places[:, part].max()) + 1
        below = down.places[:, part] - first
        if whole:
            sums = _counted(flat[first:last], below, columns)
            four = across.whole == down.whole == 2
            found[part] = (sums + 2) >> 2 if four else _to_levels(sums.astype(np.float32) * np.float32(1 / whole))
        else:
            values = _weighted(flat[first:last], columns, weights, axis=1)
            found[part] = _to_levels(_weighted(values, [*below], [*down.weights[:, part, None]], axis=0))
    return found.reshape(size[1], size[0], channels)


@dataclass(frozen=True)
class _Parts:
    """The old pixels of each new pixel's mean, along one side.

    places, weights: [number, new pixel] of the old pixels that the first, second and so on part comes from; the weight
    of a missing part is 0. whole: old pixels of a new one; 0 where that is no whole number.
    """

    places: np.ndarray
    weights: np.ndarray
    whole: int

    @classmethod
    def of(cls, length: int, count: int) -> _Parts:
        """Return the parts of ``length`` pixels that become ``count``."""
        scale = 1.0 / (count / length)
        begin = np.arange(count) * scale
        end, cell = begin + scale, np.minimum(scale, length - begin)
        last = np.minimum(np.floor(end), length - 1)
        first = np.minimum(np.ceil(begin), last)
        before, after = first - begin > _NONE, end - last > _NONE
        inside = before + (last - first)
        number = np.arange(int((inside + after).max()))[:, None]
        edges = np.where(before & (number == 0), first - begin, 1.0)
        edges = np.where(number == inside, np.minimum(np.minimum(end - last, 1.0), cell), edges)
        weights = np.where(number < inside + after, edges / cell, 0.0).astype(np.float32)
        places = np.minimum(first - before + number, length - 1).astype(np.intp)
        whole = round(scale)
        return cls(places, weights, whole if abs(scale - whole) < np.finfo(np.float64).eps else 0)


def _weighted(values: np.ndarray, places: list[np.ndarray], weights: list[np.ndarray], *, axis: int) -> np.ndarray:
    """Return float32 sums of weighted values along an axis, added in the order of the parts."""
    shape = (values.shape[0], len(places[0])) if axis else (len(places[0]), values.shape[1])
    total, part = np.empty(shape, np.float32), np.empty(shape, np.float32)
    taken = None if values.dtype == np.float32 else np.empty(shape, values.dtype)
    for number, (place, weight) in enumerate(zip(places, weights, strict=True)):
        room = part if number else total
        np.multiply(np.take(values, place, axis, out=room if taken is None else taken, mode="clip"), weight, out=room)
        if number:
            total += part
    return total


def _counted(values: np.ndarray, rows: np.ndarray, columns: list[np.ndarray]) -> np.ndarray:
    """Return int32 sums of whole pixels."""
    down = np.zeros((rows.shape[1], values.shape[1]), np.int32)
    for row in rows:
        down += values[row]
    found = np.zeros((rows.shape[1], len(columns[0])), np.int32)
    for column in columns:
        found += np.take(down, column, 1, mode="clip")
    return found


def _to_levels(values: np.ndarray) -> np.ndarray:
    return np.rint(values).astype(np.uint8)


def resized_linearly(rgb: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Resize uint8 [H, W, C] to (width, height) as OpenCV's INTER_LINEAR, to the bit: between the four nearest pixels.

    A picture is not smoothed before it is made smaller. Only half the size is the mean of four pixels, as in OpenCV.
    """
    height, width, channels = rgb.shape
    if (width, height) == (2 * size[0], 2 * size[1]):
        return shrunk_by_area(rgb, size)
    columns, right = _places(width, size[0])
    right = np.where((columns < 0) | (columns >= width - 1), 0, right)  # beyond the border is the border itself
    rows, below = _places(height, size[1])
    lines = [_flat(columns + step, width, channels) for step in (0, 1)]
    weights = [_weight(one).repeat(channels) for one in (1 - right, right)]
    flat = rgb.reshape(height, width * channels)
    found = np.empty((size[1], size[0] * channels), np.uint8)
    step = max(1, _LINEAR_BLOCK // (size[0] * channels))
    for top in range(0, size[1], step):
        part = slice(top, top + step)
        two = np.stack([rows[part], rows[part] + 1]).clip(0, height - 1)
        wanted, where = np.unique(two, return_inverse=True)
        across = _across(flat[wanted], lines, weights) >> 4
        total = np.full((two.shape[1], size[0] * channels), 2, np.int32)
        for its, share in zip(where.reshape(two.shape), (1 - below[part], below[part]), strict=True):
            total += (_weight(share)[:, None] * across[its]) >> 16
        found[part] = total >> 2
    return found.reshape(size[1], size[0], channels)


def _flat(columns: np.ndarray, width: int, channels: int) -> np.ndarray:
    """Return where values of whole pixels lie in a row; beyond the border is the border itself."""
    return (columns.clip(0, width - 1)[:, None] * channels + np.arange(channels)).reshape(-1)


def _across(rows: np.ndarray, lines: list[np.ndarray], weights: list[np.ndarray]) -> np.ndarray:
    """Interpolate uint8 [n, W] to int32 [n, w], 2048 times too large."""
    left, right = (np.take(rows, line, 1, mode="clip") * weight for line, weight in zip(lines, weights, strict=True))
    left += right
    return left


def _places(length: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return for each new pixel the old one before it, which may be -1, and its distance from that, float32."""
    scale = 1.0 / (count / length)
    exact = ((np.arange(count) + 0.5) * scale - 0.5).astype(np.float32)
    first = np.floor(exact)
    return first.astype(np.int64), exact - first


def _weight(part: np.ndarray) -> np.ndarray:
    """Return a part of 1 as a whole number of 2048."""
    return np.rint(part * np.float32(1 << _BITS)).astype(np.int32)


def _cubic_pixels(rgb: np.ndarray, framing: Framing) -> np.ndarray:
    """Scale and cut uint8 [H, W, 3] to float32 [h, w, 3] in [-1, 1], as ltx-trainer's ``MediaDataset`` does.

    The change of size is computed in float32, across and then down, in blocks that are small beside the picture.
    """
    import torch  # dry runs do without it

    (width, height), (left, top, wide, high) = framing.resized, framing.crop
    across, down = slice(left, left + wide), slice(top, top + high)
    rows = max(1, _CUBIC_BLOCK // rgb.shape[1])
    parts = [rgb[at : at + rows] for at in range(0, rgb.shape[0], rows)]
    if (width, height) == (rgb.shape[1], rgb.shape[0]):
        found = torch.cat([_values(part[:, across]) for part in parts], 1)[:, down]
    else:
        wider = [_resized(_values(part), (width, part.shape[0]))[..., across] for part in parts]
        columns = max(1, _CUBIC_BLOCK // max(height, rgb.shape[0]))
        blocks = torch.cat(wider, 1).split(columns, 2)
        scaled = torch.cat([_resized(block, (block.shape[2], height))[:, down] for block in blocks], 2)
        found = scaled.clamp_(0, 1)
    return (found * 2.0 + -1.0).permute(1, 2, 0).contiguous().numpy()


def _values(rgb: np.ndarray) -> Tensor:
    """Return [3, H, W] from 0 to 1."""
    import torch

    return torch.from_numpy(np.ascontiguousarray(rgb.transpose(2, 0, 1))).to(torch.float32) / 255


def _resized(values: Tensor, size: Size) -> Tensor:
    from torch.nn.functional import interpolate

    return interpolate(values[None], size=size[::-1], mode="bicubic", antialias=True, align_corners=False)[0]
