"""A convolution of a band of rows: at the picture's border it sees zeros, elsewhere its neighbours' rows."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from tvae.kernels.library_convolutions import conv2d

__all__ = ["convolved"]


def convolved(x: Tensor, weight: Tensor, pads: Sequence[int]) -> Tensor:
    """conv2d of x_nchw with so many zeros (left, right, top, bottom) around it."""
    left, right, top, bottom = pads
    # the library pads both ends alike without a copy; what saw zeros where there are none is left out
    high, wide = max(top, bottom), max(left, right)
    y = conv2d(x, weight, padding=(high, wide))
    return y[:, :, high - top : y.shape[2] - high + bottom, wide - left : y.shape[3] - wide + right]
