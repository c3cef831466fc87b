"""The definitions of what looks at one pixel or one token at a time, against float64: rms norms, attention, sample."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_inputs import TYPES, images, laid_out, normal, per_channel, rounding, silu, wide_rounding
from torch import Tensor, nn

from tvae.kernels.operations.rms_norm_act import rms_norm_act
from tvae.kernels.operations.sample import sample
from tvae.kernels.operations.wide_attention import wide_attention

few = settings(max_examples=40, deadline=None)


def rms_in_float64(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, form: str) -> Tensor:
    """By torch's own modules."""
    wide, c = x.double(), x.shape[1]
    if form == "normalize":
        y = F.normalize(wide, dim=1, eps=eps) * c**0.5
    else:
        norm = nn.RMSNorm(c, eps=eps, elementwise_affine=False, dtype=torch.float64)
        y = norm(wide.movedim(1, -1)).movedim(-1, 1)
    y = y if weight is None else y * per_channel(weight.double(), x)
    return y if bias is None else y + per_channel(bias.double(), x)


@given(images(), st.data())
@few
def test_rms_norms(x: Tensor, data: Any) -> None:
    form, act = data.draw(st.sampled_from(["normalize", "rms"])), data.draw(st.sampled_from([None, "silu"]))
    weight, bias = (normal((x.shape[1],), s).to(x.dtype) if data.draw(st.booleans()) else None for s in (1, 2))
    eps = data.draw(st.sampled_from([1e-12, 1e-6, 1e-1]))
    before = x.clone()
    got = rms_norm_act(x, weight, bias, eps, form, act)
    assert torch.equal(x, before)
    assert got.dtype == x.dtype
    assert got.shape == x.shape
    want = rms_in_float64(x, weight, bias, eps, form)
    terms = want.abs() + (0 if bias is None else 2 * per_channel(bias.double().abs(), x))
    bound = 1.01 * rounding(x.dtype) * want.abs() + 16 * wide_rounding(x.dtype) * terms + 1e-7
    if act:
        want = silu(want)
        bound = 1.1 * bound + (1.01 * rounding(x.dtype) + 4 * wide_rounding(x.dtype)) * want.abs()
    assert ((got.double() - want).abs() <= bound).all()


@pytest.mark.parametrize("form", ["normalize", "rms"])
def test_pixels_of_zeros_have_no_size(form: str) -> None:
    x = torch.zeros(1, 4, 2, 2)
    assert torch.equal(rms_norm_act(x, None, None, 1e-6, form, None), x)


def test_halves_are_squared_in_a_wide_type() -> None:
    """300² is more than float16 holds."""
    x = torch.full((1, 4, 2), 300.0, dtype=torch.float16)
    assert rms_norm_act(x, None, None, 1e-6, "rms", None).tolist() == torch.ones(1, 4, 2).tolist()


@pytest.mark.parametrize("form", ["normalize", "rms"])
def test_not_a_number_stays_in_its_pixel(form: str) -> None:
    x = torch.ones(1, 4, 3)
    x[0, 2, 1] = math.nan
    got = rms_norm_act(x, None, None, 1e-6, form, "silu")
    assert got.isnan().any(1).tolist() == [[False, True, False]]


def test_unknown_forms_and_activations_are_refused() -> None:
    x = torch.ones(1, 4, 3)
    with pytest.raises(ValueError, match="'layer'"):
        rms_norm_act(x, None, None, 1e-6, "layer", None)
    with pytest.raises(ValueError, match="'relu'"):
        rms_norm_act(x, None, None, 1e-6, "rms", "relu")


def attention_in_float64(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> Tensor:
    """By the explicit matrix of all frames, masked."""
    b, t, m, d = q.shape
    n = k.shape[2]
    queries, keys, values = (x.double().reshape(b, -1, d) for x in (q, k, v))
    scores = queries @ keys.transpose(1, 2) * scale
    if causal:
        seen = torch.arange(t).repeat_interleave(m)[:, None] >= torch.arange(t).repeat_interleave(n)
        scores = scores.masked_fill(~seen, -math.inf)
    weights = (scores - scores.amax(2, keepdim=True)).exp()
    return (weights @ values / weights.sum(2, keepdim=True)).view(b, t, m, d)


@given(st.data())
@few
def test_attention_is_the_softmax_of_its_scores(data: Any) -> None:
    b, t, m, n, d = (data.draw(st.integers(1, high)) for high in (2, 3, 5, 5, 8))
    dtype, causal = data.draw(st.sampled_from(TYPES)), data.draw(st.booleans())
    scale = data.draw(st.sampled_from([d**-0.5, 0.1, 3.0]))
    layout = data.draw(st.sampled_from(["contiguous", "channels last", "rows of more"]))
    q = laid_out(normal((b, t, m, d), 0).to(dtype), layout)
    k, v = (laid_out(normal((b, t, n, d), seed).to(dtype), layout) for seed in (1, 2))
    got = wide_attention(q, k, v, scale, causal)
    assert got.shape == q.shape
    assert got.dtype == dtype
    # scores round to the type that holds them; what they weigh is at most the largest value
    off = rounding(dtype) * (8 + 8 * scale * d**0.5 * q.abs().max().item() * k.abs().max().item())
    want = attention_in_float64(q, k, v, scale, causal)
    torch.testing.assert_close(got.double(), want, rtol=0, atol=off * v.abs().max().item())


def test_causal_frames_do_not_see_those_after_them() -> None:
    q, k, v = (normal((1, 4, 3, 8), seed) for seed in (0, 1, 2))
    got = wide_attention(q, k, v, 0.3, True)
    k[:, 2:], v[:, 2:] = 9.0, math.nan
    later = wide_attention(q, k, v, 0.3, True)
    assert torch.equal(got[:, :2], later[:, :2])
    assert later[:, 2:].isnan().all()


@given(images(far=False), st.integers(0, 100))
@few
def test_a_sample_is_rounded_once_or_twice(mean: Tensor, seed: int) -> None:
    std, noise = (normal(tuple(mean.shape), seed + i).to(mean.dtype) for i in (1, 2))
    std = std.abs()
    got = sample(mean, std, noise)
    assert got.dtype == mean.dtype
    product = std.double() * noise.double()
    want = mean.double() + product
    bound = 2.02 * rounding(mean.dtype) * (want.abs() + product.abs()) + torch.finfo(mean.dtype).tiny
    assert ((got.double() - want).abs() <= bound).all()


def test_a_sample_without_deviation_is_the_mean() -> None:
    mean, noise = normal((1, 4, 8, 8), 0), normal((1, 4, 8, 8), 1)
    assert torch.equal(sample(mean, torch.zeros_like(mean), noise), mean)
