"""The distance between values, summed in float64 as they pass by."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["Distance"]

_AT_A_TIME = 1 << 20
"""Values: their copies in float64 take some 8 MiB each."""


class Distance:
    """Between what is compared with, the reference, and something else."""

    def __init__(self) -> None:
        self.largest = 0.0
        """The largest absolute difference."""
        self._apart = self._reference = 0.0

    def add(self, reference: Tensor, other: Tensor) -> None:
        """Numbers of one shape, of any types. ValueError where some are not finite."""
        if reference.shape != other.shape:
            raise ValueError(f"values of different shapes: {[*reference.shape]} and {[*other.shape]}")
        if reference.is_complex() or other.is_complex():
            reference, other = (torch.view_as_real(t.to(torch.complex128)) for t in (reference, other))
        for first, second in zip(
            reference.reshape(-1).split(_AT_A_TIME), other.reshape(-1).split(_AT_A_TIME), strict=True
        ):
            x, apart = first.double(), first.double() - second.double()
            if not apart.isfinite().all():
                raise ValueError("there are values that are not finite")
            if x.numel():
                self.largest = max(self.largest, float(apart.abs().max()))
            self._apart += float(apart.square().sum())
            self._reference += float(x.square().sum())

    @property
    def relative_l2(self) -> float:
        """``||other - reference|| / ||reference||``; infinite where the reference is zero and the other is not."""
        if not self._apart:
            return 0.0
        return math.sqrt(self._apart / self._reference) if self._reference else math.inf
