"""The window of a convolution that keeps the size of a picture, its zeros given to the kernel at the true border."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvae.pipeline.engine.ir.program import Demand, Op
from tvae.pipeline.engine.rules.registry import NoRule

__all__ = ["SameSize"]


class SameSize:
    """Rows that such a convolution sees, and the borders that lie beyond them."""

    def __init__(self, source: Op, weight: Op) -> None:
        axis = source.axis
        if axis is None or axis.dim != 2 or not axis.plain:
            raise NoRule(f"a convolution over rows that are merged with another dimension ({axis})")
        self._id, self._rows, self._taps = source.id, axis.rows, weight.shape[1:]
        self._high, self._wide = weight.shape[2] // 2, weight.shape[3] // 2

    def span(self, a: int, b: int) -> tuple[int, int, list[int]]:
        """(first, last, pads) of the source for rows [a, b) of the result."""
        first, last = max(a - self._high, 0), min(b + self._high, self._rows)
        return first, last, [self._wide, self._wide, first - a + self._high, b + self._high - last]

    def demand(self, a: int, b: int) -> list[Demand]:
        """See ``Op``."""
        first, last, _ = self.span(a, b)
        return [(self._id, first, last)]

    def work(self, shape: Sequence[int]) -> float:
        """Floating-point operations of a result of this shape."""
        return 2.0 * math.prod(self._taps) * math.prod(shape)
