"""The definitions of the sums with statistics (residual, sub-pixel phases), against float64."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_inputs import TYPES, channels_last, images, laid_out, normal, per_channel, rounding
from torch import Tensor

from tvae.kernels import native

few = settings(max_examples=40, deadline=None)


@given(images(), st.data())
@few
def test_sum_of_a_map_a_residual_and_a_bias(x: Tensor, data: Any) -> None:
    c = x.shape[1]
    residual = laid_out(normal(tuple(x.shape), 1).to(x.dtype), "channels last") if data.draw(st.booleans()) else None
    bias = normal((c,), 2).to(x.dtype) if data.draw(st.booleans()) else None
    places = ["new", "x", "elsewhere"] + (["residual"] if residual is not None else [])
    place, stats = data.draw(st.sampled_from(places)), data.draw(st.booleans())
    want, terms = x.double(), x.double().abs()
    for term in (residual, None if bias is None else per_channel(bias, x)):
        want, terms = (want, terms) if term is None else (want + term.double(), terms + term.double().abs())
    around = torch.full((x.shape[0], c, x.shape[2] + 2, *x.shape[3:]), 7.0, dtype=x.dtype)
    elsewhere = around[:, :, 1:-1]
    out = {"new": None, "x": x, "elsewhere": elsewhere, "residual": residual}[place]
    before = x.clone()
    y, parts = native.add_stats(x, residual, bias, out, stats)
    assert out is None or y is out
    assert place == "x" or torch.equal(x, before)
    assert y.dtype == x.dtype
    assert ((y.double() - want).abs() <= 2.02 * rounding(x.dtype) * terms).all()
    assert (around[:, :, [0, -1]] == 7).all()
    assert (parts is not None) == stats
    if parts is not None:
        assert torch.equal(parts, native.group_stats(y))


def test_a_sum_that_is_nan_is_nan_in_its_statistics() -> None:
    x, residual = torch.full((1, 2, 4), math.inf), torch.zeros(1, 2, 4)
    residual[0, 0, 1] = -math.inf
    y, parts = native.add_stats(x, residual, None, x, True)
    assert y[0, 0].isnan().tolist() == [False, True, False, False]
    assert parts is not None
    assert parts[0, 0, 1:].isnan().all()


@given(st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(1, 4), st.integers(1, 4)), st.data())
@few
def test_phases_lie_as_the_formula_says(shape: tuple[int, int, int, int], data: Any) -> None:
    """Pixel by pixel; ``out`` may be a part of something larger."""
    n, c, h, w = shape
    dtype, layout = data.draw(st.sampled_from(TYPES)), data.draw(st.sampled_from(["contiguous", "channels last"]))
    phases = laid_out(normal((n, 4 * c, h + 1, w + 1), 0).to(dtype), layout)
    bias = normal((c,), 1).to(dtype) if data.draw(st.booleans()) else None
    around = torch.full((n, c, 2 * h + 2, 2 * w), 7.0, dtype=dtype)
    out = around[:, :, 1:-1] if data.draw(st.booleans()) else None
    y, parts = native.interleave_stats(phases, bias, out, True)
    assert out is None or y is out
    assert (around[:, :, [0, -1]] == 7).all()
    if out is None and layout == "channels last":
        assert y.is_contiguous(memory_format=torch.channels_last)
    want = torch.empty(n, c, 2 * h, 2 * w, dtype=torch.float64)
    for b, k, i, j, p, q in product(range(n), range(c), range(h), range(w), (0, 1), (0, 1)):
        value = phases[b, (2 * p + q) * c + k, i + p, j + q].item()
        want[b, k, 2 * i + p, 2 * j + q] = value + (0 if bias is None else bias[k].item())
    assert y.dtype == dtype
    assert ((y.double() - want).abs() <= 1.01 * rounding(dtype) * want.abs()).all()
    assert parts is not None
    assert torch.equal(parts, native.group_stats(y))
    assert native.interleave_stats(phases, bias, out, False)[1] is None


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(("h", "w"), [(1, 1), (1, 5), (4, 3), (6, 7)])
def test_phases_are_an_upsampling_and_its_convolution(h: int, w: int, last: bool) -> None:
    """Nearest 2x, then 3x3 with a border of one: each phase sums the taps that fall on the same pixel."""
    x, kernel, bias = normal((2, 3, h, w), 0), normal((5, 3, 3, 3), 1), normal((5,), 2)
    want = F.conv2d(F.interpolate(x, scale_factor=2.0, mode="nearest"), kernel, bias, padding=1)
    sums = torch.tensor([[[1.0, 0, 0], [0, 1, 1]], [[1, 1, 0], [0, 0, 1]]], dtype=torch.float64)  # [phase, tap, of 3]
    phased = torch.einsum("par,qbs,kcrs->pqkcab", sums, sums, kernel).reshape(4 * 5, 3, 2, 2)
    phases = F.conv2d(x, phased, padding=1)
    y, _ = native.interleave_stats(channels_last(phases) if last else phases, bias, None, False)
    torch.testing.assert_close(y, want, rtol=0, atol=1e-13)
