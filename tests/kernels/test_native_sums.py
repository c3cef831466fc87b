"""The definitions of the sums with statistics (residual), against float64."""

from __future__ import annotations

import math
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_inputs import images, laid_out, normal, per_channel, rounding
from torch import Tensor

from tvae.kernels.operations.add_stats import add_stats
from tvae.kernels.operations.group_stats import group_stats

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
    y, parts = add_stats(x, residual, bias, out, stats)
    assert out is None or y is out
    assert place == "x" or torch.equal(x, before)
    assert y.dtype == x.dtype
    assert ((y.double() - want).abs() <= 2.02 * rounding(x.dtype) * terms).all()
    assert (around[:, :, [0, -1]] == 7).all()
    assert (parts is not None) == stats
    if parts is not None:
        assert torch.equal(parts, group_stats(y))


def test_a_sum_that_is_nan_is_nan_in_its_statistics() -> None:
    x, residual = torch.full((1, 2, 4), math.inf), torch.zeros(1, 2, 4)
    residual[0, 0, 1] = -math.inf
    y, parts = add_stats(x, residual, None, x, True)
    assert y[0, 0].isnan().tolist() == [False, True, False, False]
    assert parts is not None
    assert parts[0, 0, 1:].isnan().all()
