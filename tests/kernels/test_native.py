"""The definitions of the normalisations, against float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from kernel_inputs import channels_last, groups_of, images, normal, per_channel, rounding, silu, wide_rounding
from torch import Tensor

from tvae.kernels import statistics
from tvae.kernels.operations.finish_stats import finish_stats
from tvae.kernels.operations.group_stats import group_stats
from tvae.kernels.operations.merge_stats import merge_stats
from tvae.kernels.operations.norm_act import norm_act
from tvae.kernels.statistics import blocks

few = settings(max_examples=40, deadline=None)
EPS = 1e-2  # far above the rounding of a variance of one element, which is zero


def check_stats(parts: Tensor, x: Tensor) -> None:
    """Blocks merged in float64 against the same elements; the mean may cost no digits of the deviations."""
    n, c = x.shape[:2]
    assert parts.shape == (n, parts.shape[1], 3, c)
    assert parts.dtype == torch.float64
    count, mean, m2 = parts.unbind(2)
    wide = x.double().flatten(2)
    size, want_mean = wide.shape[2], wide.mean(2)
    assert (count.sum(1) == size).all()
    got_mean = (count * mean).sum(1) / size
    got_m2 = (m2 + count * (mean - want_mean[:, None]).square()).sum(1)
    want_m2 = (wide - want_mean[..., None]).square().sum(2)
    deviation = math.sqrt(want_m2.max().item() / size)
    off, merging = wide_rounding(x.dtype), 1e-14 * (wide.abs().max().item() + 1)
    torch.testing.assert_close(got_mean, want_mean, rtol=0, atol=16 * off * deviation + merging)
    bound = (32 * off * deviation + 2 * merging) * deviation * size + merging**2 * size
    torch.testing.assert_close(got_m2, want_m2, rtol=0, atol=bound)


@given(images())
@few
def test_statistics_of_channels(x: Tensor) -> None:
    parts = group_stats(x)
    assert parts.shape[1] == 1
    check_stats(parts, x)


@given(images(), st.integers(1, 64))
@few
def test_statistics_taken_in_blocks(x: Tensor, block: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statistics, "_CPU_BLOCK", block)
        parts = group_stats(x)
    if x.numel() > block and max(x.shape[2:]) > 1:
        assert parts.shape[1] > 1
    check_stats(parts, x)
    merged = merge_stats(parts)
    assert merged.shape[1] == 1
    check_stats(merged, x)


def affine_in_float64(x: Tensor, groups: int, **factors: Tensor | None) -> tuple[Tensor, Tensor]:
    """(scale, shift) [N, C] of the group normalisation of x + offset."""
    weight, bias, offset = (None if t is None else t.double() for t in map(factors.get, ("weight", "bias", "offset")))
    moved = x.double() if offset is None else x.double() + per_channel(offset, x)
    moved = moved.reshape(x.shape[0], groups, -1)
    mean, var = moved.mean(2), moved.var(2, unbiased=False)
    mean, var = (t.repeat_interleave(x.shape[1] // groups, 1) for t in (mean, var))
    scale = (1 if weight is None else weight) / (var + EPS).sqrt()
    shift = ((0 if offset is None else offset) - mean) * scale + (0 if bias is None else bias)
    return scale, shift


def factors_of(x: Tensor, draw: Any) -> dict[str, Tensor | None]:
    """weight, bias and offset, each there or not, of x's type."""
    made = zip(("weight", "bias", "offset"), (1, 2, 3), strict=True)
    return {name: normal((x.shape[1],), seed).to(x.dtype) if draw(st.booleans()) else None for name, seed in made}


@given(images(), st.data())
@few
def test_any_partition_finishes_to_the_affine_of_the_whole(x: Tensor, data: Any) -> None:
    """Strips concatenated in any order; the oracle sees one tensor."""
    dim = data.draw(st.integers(2, x.ndim - 1))
    size = x.shape[dim]
    cuts = sorted(data.draw(st.sets(st.integers(1, size - 1)))) if size > 1 else []
    strips = [x.narrow(dim, a, b - a) for a, b in zip([0, *cuts], [*cuts, size], strict=True)]
    parts = torch.cat([group_stats(strip) for strip in data.draw(st.permutations(strips))], 1)
    groups, factors = groups_of(x, data.draw), factors_of(x, data.draw)
    got = finish_stats(parts, groups, EPS, **factors)
    wide = x.dtype == torch.float64 and any(t is not None for t in factors.values())
    assert got.dtype == (torch.float64 if wide else torch.float32)
    assert got.shape == (2, *x.shape[:2])
    scale, shift = affine_in_float64(x, groups, **factors)
    off = wide_rounding(got.dtype if x.dtype == torch.float64 else x.dtype)
    scale_size, mean_size = scale.abs().max().item(), x.double().abs().max().item() + 4
    off = 64 * off + 1e-14 * mean_size
    torch.testing.assert_close(got[0].double(), scale, rtol=off, atol=0)
    bound = off * (scale_size * mean_size + shift.abs().max().item())
    torch.testing.assert_close(got[1].double(), shift, rtol=0, atol=bound)


def apply_in_float64(x: Tensor, affine: Tensor) -> tuple[Tensor, Tensor]:
    """x·scale + shift, and the size of what cancels in it."""
    scale, shift = (per_channel(t, x) for t in affine.double())
    return x.double() * scale + shift, (x.double() * scale).abs() + shift.abs()


@given(images(), st.data())
@few
def test_the_affine_map_is_rounded_once(x: Tensor, data: Any) -> None:
    affine = normal((2, *x.shape[:2]), 5)
    if data.draw(st.booleans()) or x.dtype != torch.float64:
        affine = affine.float()
    act = data.draw(st.sampled_from([None, "silu"]))
    before = x.clone()
    got = norm_act(x, affine, act)
    assert torch.equal(x, before)
    assert got.dtype == x.dtype
    want, terms = apply_in_float64(x, affine)
    bound = 1.01 * rounding(x.dtype) * want.abs() + 4 * wide_rounding(x.dtype) * terms
    if act:  # its slope is at most 1.1
        want = silu(want)
        bound = 1.1 * bound + (1.01 * rounding(x.dtype) + 4 * wide_rounding(x.dtype)) * want.abs() + 1e-7
    assert ((got.double() - want).abs() <= bound).all()


def test_one_sample_channels_last_stays_channels_last() -> None:
    x = channels_last(normal((1, 4, 3, 5), 0).float())
    assert norm_act(x, torch.ones(2, 1, 4), "silu").stride()[1:] == x.stride()[1:]


def test_an_unknown_activation_is_refused() -> None:
    with pytest.raises(ValueError, match="'gelu'"):
        norm_act(torch.zeros(1, 2, 3), torch.ones(2, 1, 2), "gelu")


@given(images(types=(torch.float64,), far=False), st.data())
@few
def test_groups_are_torch_group_norms(x: Tensor, data: Any) -> None:
    groups, c = groups_of(x, data.draw), x.shape[1]
    weight, bias = normal((c,), 1), normal((c,), 2)
    affine = finish_stats(group_stats(x), groups, EPS, weight, bias, None)
    assume(x[0].numel() > groups)  # torch refuses a single value a group
    want = F.group_norm(x, groups, weight, bias, EPS)
    _, terms = apply_in_float64(x, affine)
    torch.testing.assert_close(norm_act(x, affine, None), want, rtol=0, atol=1e-14 * terms.max().item() * 16)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_offset_is_the_bias_left_out_of_a_convolution(dtype: torch.dtype) -> None:
    x, kernel, skipped = normal((2, 3, 9, 7), 0), normal((8, 3, 3, 3), 1), normal((8,), 2) * 30
    weight, bias = normal((8,), 3), normal((8,), 4)
    want = F.group_norm(F.conv2d(x, kernel, skipped, padding=1), 4, weight, bias, EPS)
    bare = F.conv2d(x, kernel, padding=1).to(dtype)
    factors = (t.to(dtype) for t in (weight, bias, skipped))
    affine = finish_stats(group_stats(bare), 4, EPS, *factors)
    without = finish_stats(group_stats(bare), 4, EPS, weight.to(dtype), bias.to(dtype), None)
    bound = 1e-12 if dtype == torch.float64 else 1e-5
    torch.testing.assert_close(norm_act(bare, affine, None).double(), want, rtol=0, atol=bound)
    assert not torch.allclose(norm_act(bare, without, None).double(), want, atol=0.1)


@pytest.mark.parametrize("far", [1e4, 3e6])
@pytest.mark.parametrize("last", [False, True])
def test_a_large_mean_costs_no_digits_of_the_variance(far: float, last: bool) -> None:
    """Sums of squares would lose them all: at a mean of 1e4 float32 resolves their difference to 6."""
    x = (normal((2, 8, 63, 61), 0) + far).float()
    x = channels_last(x) if last else x
    var = finish_stats(group_stats(x), 4, 0.0, None, None, None)[0].double() ** -2
    want = x.double().reshape(2, 4, -1).var(2, unbiased=False).repeat_interleave(2, 1)
    assert ((var - want) / want).abs().max().item() < 1e-6


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "shape", [(2, 24, 9, 2000), (1, 6, 99999), (2, 8, 5, 80, 99), (1, 300, 65, 47), (1, 400, 1, 1500)]
)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("far", [0.0, 500.0])
def test_blocks_of_any_layout_and_of_crops(shape: tuple[int, ...], last: bool, kind: torch.dtype, far: float) -> None:
    """Small ones, which together have every pixel once, and each channel's mean and variance."""
    x = (2 * normal(shape, 0) + far * normal(shape[:2], 1).view(*shape[:2], *[1] * (len(shape) - 2))).to(kind)
    if last:
        x = x.movedim(1, -1).contiguous().movedim(-1, 1)
    for cropped in (x, x[..., : -(-shape[-1] // 2)]):
        found = blocks(cropped)
        assert all(block.numel() <= 1 << 18 for block in found)
        assert len(found) > 1
        count, mean, m2 = merge_stats(group_stats(cropped))[:, 0].unbind(1)
        wide, dims = cropped.double(), tuple(range(2, x.ndim))
        close = 1e-6 if kind == torch.float32 else 1e-12
        assert (count == cropped[0, 0].numel()).all()
        torch.testing.assert_close(mean, wide.mean(dims), rtol=1e-13, atol=close)
        torch.testing.assert_close((m2 / count).sqrt(), wide.std(dims, correction=0), rtol=close, atol=0)


def test_halves_are_summed_in_a_wide_type() -> None:
    x = torch.full((1, 2, 300, 300), 1000.0, dtype=torch.float16)
    x[:, 1, ::2] = -1000.0
    count, mean, m2 = group_stats(x).unbind(2)
    assert (count.sum(1) == 300 * 300).all()
    assert (mean[..., 0] == 1000.0).all()
    assert m2[..., 0].max().item() == 0.0
    spread = (m2 + count * mean.square())[..., 1].sum().item()
    assert math.isclose(spread, 300 * 300 * 1e6, rel_tol=1e-6)


def test_one_element_has_no_variance() -> None:
    x = torch.full((2, 4, 1, 1), 3.5)
    affine = finish_stats(group_stats(x), 4, 1e-5, None, None, None)
    assert norm_act(x, affine, None).abs().max().item() <= 3.5 * 1e-5**-0.5 * 2**-23


def test_channels_of_a_group_that_differ_spread_its_variance() -> None:
    x = torch.tensor([1.0, 3.0]).view(1, 2, 1, 1).expand(1, 2, 4, 4)
    scale, shift = finish_stats(group_stats(x), 1, 0.0, None, None, None)
    assert scale.tolist() == [[1.0, 1.0]]
    assert shift.tolist() == [[-2.0, -2.0]]


@pytest.mark.parametrize("act", [None, "silu"])
def test_not_a_number_stays_not_a_number(act: str | None) -> None:
    x = torch.zeros(1, 2, 3, 3)
    x[0, 0, 1, 1] = math.nan
    out = norm_act(x, finish_stats(group_stats(x), 2, EPS, None, None, None), act)
    assert out[0, 0].isnan().all()
    assert not out[0, 1].isnan().any()
