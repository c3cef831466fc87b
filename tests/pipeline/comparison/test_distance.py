"""Distances are NumPy's in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tvae.pipeline.comparison.distance import Distance


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8, torch.float64])
@pytest.mark.parametrize("shape", [(1,), (3, 5, 7), (4, 1 << 19), (2, 0)])
def test_numpy_finds_the_same(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    torch.manual_seed(len(shape))
    first, second = (torch.rand(shape).mul(200).to(dtype) for _ in range(2))
    distance = Distance()
    distance.add(first, second)
    distance.add(first.mT, second.mT) if len(shape) > 1 else distance.add(first, second)  # in pieces, in any layout
    x, y = (t.double().numpy() for t in (first, second))
    if not x.size:
        assert (distance.relative_l2, distance.largest) == (0, 0)
        return
    assert distance.relative_l2 == pytest.approx(np.linalg.norm(y - x) / np.linalg.norm(x), rel=1e-12)
    assert distance.largest == np.abs(y - x).max()


def test_complex_numbers() -> None:
    first, second = torch.randn(5, dtype=torch.complex64), torch.randn(5)
    for x, y in ((first, second), (second, first)):
        distance = Distance()
        distance.add(x, y)
        assert distance.relative_l2 == pytest.approx(float((y - x).norm() / x.norm()), rel=1e-6)


def test_ends() -> None:
    distance = Distance()
    distance.add(torch.zeros(3), torch.zeros(3))
    assert (distance.relative_l2, distance.largest) == (0, 0)
    distance.add(torch.zeros(2), torch.tensor([0.0, -2.0]))
    assert (distance.relative_l2, distance.largest) == (math.inf, 2)
    for bad in (math.nan, math.inf):
        with pytest.raises(ValueError, match="not finite"):
            distance.add(torch.tensor([bad]), torch.tensor([bad]))
    with pytest.raises(ValueError, match="different shapes"):
        distance.add(torch.zeros(2, 3), torch.zeros(3, 2))
