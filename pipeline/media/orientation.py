"""Turning pictures upright: display matrices of videos and EXIF orientations of photos."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

__all__ = ["UPRIGHT", "Orientation", "from_display_matrix", "from_exif"]


@dataclass(frozen=True)
class Orientation:
    """What makes a stored picture upright: mirror left-right (or not), then turn clockwise by 0, 90, 180 or 270."""

    rotation: int = 0
    mirrored: bool = False

    @property
    def swaps_sides(self) -> bool:
        return self.rotation in (90, 270)

    def apply(self, rgb: np.ndarray) -> np.ndarray:
        """[H, W, C] as stored -> upright [H', W', C], contiguous."""
        turned = rgb[:, ::-1] if self.mirrored else rgb
        return np.ascontiguousarray(np.rot90(turned, -self.rotation // 90))


UPRIGHT = Orientation()

# Exif 2.32, tag 0x0112: where row 0 and column 0 of the stored picture lie.
_EXIF = {
    1: UPRIGHT,
    2: Orientation(0, mirrored=True),
    3: Orientation(180),
    4: Orientation(180, mirrored=True),
    5: Orientation(270, mirrored=True),
    6: Orientation(90),
    7: Orientation(90, mirrored=True),
    8: Orientation(270),
}


def from_exif(value: object) -> Orientation:
    """EXIF orientation 1..8; anything else counts as upright, as viewers do."""
    return _EXIF.get(value, UPRIGHT) if isinstance(value, int) else UPRIGHT


def from_display_matrix(matrix: bytes) -> Orientation | None:
    """FFmpeg's display matrix (nine int32, 16.16 fixed point); None when it is not a multiple of a quarter turn.

    With the matrix a b u / c d v / x y w a stored point (x, y), y downwards, is shown at (a x + c y, b x + d y).
    """
    a, b, _, c, d, *_ = (value / 65536 for value in struct.unpack("=9i", matrix[:36]))
    scale = max(abs(a), abs(b), abs(c), abs(d))
    if scale == 0:
        return None
    exact = tuple(round(value / scale) for value in (a, b, c, d))
    if any(abs(value / scale - whole) > 1e-3 for value, whole in zip((a, b, c, d), exact, strict=True)):
        return None
    # (1, 0) goes to (a, b) and, being mirrored first if at all, tells the turn together with the determinant.
    mirrored = exact[0] * exact[3] - exact[1] * exact[2] < 0
    right = (-exact[0], -exact[1]) if mirrored else (exact[0], exact[1])
    turn = {(1, 0): 0, (0, 1): 90, (-1, 0): 180, (0, -1): 270}.get(right)
    return None if turn is None else Orientation(turn, mirrored)
