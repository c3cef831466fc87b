"""PSNR and SSIM between 8-bit pictures, frame by frame, summed as frames pass by.

PSNR = 10 log10(255² / MSE). The MSE runs over all pixels, the three channels and, for a clip, all frames (what FFmpeg's
``psnr`` filter calls *average*), so one frame that is reproduced exactly does not make the clip's value infinite.

SSIM is Wang, Bovik, Sheikh, Simoncelli: "Image quality assessment: from error visibility to structural similarity",
IEEE Transactions on Image Processing 13(4), 2004, equation 13::

    SSIM(x, y) = (2 mx my + C1) (2 cov + C2) / ((mx² + my² + C1) (vx + vy + C2))
    C1 = (0.01 * 255)²,  C2 = (0.03 * 255)²

with means m, variances v and covariance under an 11x11 Gaussian window of sigma 1.5 that sums to 1, taken wherever the
whole window lies in the picture, averaged over positions, over R, G and B, and over frames. A picture with a side
below 11 pixels has no SSIM.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["Quality", "QualityMeter", "ssim"]

WINDOW = 11
SIGMA = 1.5
PEAK = 255.0
C1 = (0.01 * PEAK) ** 2
C2 = (0.03 * PEAK) ** 2


@dataclass(frozen=True)
class Quality:
    """PSNR in dB (infinite for equal pictures) and SSIM in [-1, 1] (None where the picture is too small for it)."""

    psnr: float
    ssim: float | None
    frames: int

    def to_json(self) -> dict[str, float | int | None]:
        """JSON has no infinity: equal pictures give a ``psnr`` of null."""
        return {
            "psnr": round(self.psnr, 4) if math.isfinite(self.psnr) else None,
            "ssim": None if self.ssim is None else round(self.ssim, 6),
            "frames": self.frames,
        }

    def __str__(self) -> str:
        psnr = f"{self.psnr:.2f} dB" if math.isfinite(self.psnr) else "infinite (identical)"
        return f"PSNR {psnr}" + ("" if self.ssim is None else f", SSIM {self.ssim:.4f}")

    @classmethod
    def mean(cls, items: Sequence[Quality]) -> Quality:
        """Each item counts the same; ``frames`` is their sum. At least one item."""
        similar = [item.ssim for item in items if item.ssim is not None]
        return cls(
            sum(item.psnr for item in items) / len(items),
            sum(similar) / len(similar) if similar else None,
            sum(item.frames for item in items),
        )


class QualityMeter:
    """Takes pairs of frames and keeps sums only."""

    def __init__(self) -> None:
        self._squared_error = 0
        self._values = 0
        self._ssim = 0.0
        self._ssim_frames = 0
        self._frames = 0

    def add(self, reference: np.ndarray, other: np.ndarray) -> None:
        """Two uint8 ``[H, W, 3]`` frames of one size."""
        if reference.shape != other.shape:
            raise ValueError(f"frames of different shapes: {reference.shape} and {other.shape}")
        difference = reference.astype(np.int32) - other
        self._squared_error += int(np.einsum("hwc,hwc->", difference, difference, dtype=np.int64))
        self._values += reference.size
        self._frames += 1
        if min(reference.shape[:2]) >= WINDOW:
            self._ssim += ssim(reference, other)
            self._ssim_frames += 1

    def result(self) -> Quality:
        """Quality so far; ValueError before the first frame."""
        if not self._frames:
            raise ValueError("no frames were compared")
        error = self._squared_error / self._values
        psnr = 10 * math.log10(PEAK**2 / error) if error else math.inf
        return Quality(psnr, self._ssim / self._ssim_frames if self._ssim_frames else None, self._frames)


def ssim(reference: np.ndarray, other: np.ndarray) -> float:
    """SSIM of two uint8 ``[H, W, 3]`` frames of one size, both sides at least 11."""
    channels = range(reference.shape[2])  # one at a time: the maps of one are ten times a frame
    return sum(_ssim_of_channel(reference[..., c], other[..., c]) for c in channels) / len(channels)


def _ssim_of_channel(reference: np.ndarray, other: np.ndarray) -> float:
    # Centring leaves variances as they are and keeps float32 from losing them in the squares.
    shift = np.float32(PEAK / 2)
    x, y = (plane.astype(np.float32) - shift for plane in (reference, other))
    mean_x, mean_y, xx, yy, xy = map(_blur, (x, y, x * x, y * y, x * y))
    var_x, var_y, covariance = xx - mean_x**2, yy - mean_y**2, xy - mean_x * mean_y
    mean_x, mean_y = mean_x + shift, mean_y + shift
    luminance = (2 * mean_x * mean_y + C1) / (mean_x**2 + mean_y**2 + C1)
    structure = (2 * covariance + C2) / (var_x + var_y + C2)
    return float((luminance * structure).mean(dtype=np.float64))


def _blur(plane: np.ndarray) -> np.ndarray:
    """Gaussian window over float32 ``[H, W]``, valid positions only; it separates into rows and columns.

    In numpy, not torch: this runs beside the VAE, and a second team of torch's threads would fight it for the cores.
    """
    offsets = np.arange(WINDOW) - WINDOW // 2
    weights = np.exp(-(offsets**2) / (2 * SIGMA**2))
    weights = (weights / weights.sum()).astype(np.float32)
    height, width = plane.shape[0], plane.shape[1] - WINDOW + 1
    plane = _sum(weight * plane[:, start : start + width] for start, weight in enumerate(weights))
    height -= WINDOW - 1
    return _sum(weight * plane[start : start + height] for start, weight in enumerate(weights))


def _sum(terms: Iterator[np.ndarray]) -> np.ndarray:
    """In place of the first: ``sum`` would make an array a term."""
    total = next(terms)
    for term in terms:
        total += term
    return total
