"""The definitions of the fused operations, against float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tvae.kernels import Stats, group_stats, merge_stats, native, norm_affine

EPS = 1e-5
ROUNDING = {torch.float64: 1e-14, torch.float32: 3e-7, torch.bfloat16: 5e-3, torch.float16: 6e-4}
"""Error of one rounding of the result, relative to its size."""
WIDE_ROUNDING = {torch.float64: 1e-14, torch.float32: 3e-7, torch.bfloat16: 3e-7, torch.float16: 3e-7}
"""The same for the type that is computed in."""

few = settings(max_examples=40, deadline=None)
dtypes = st.sampled_from(sorted(ROUNDING, key=str))


@st.composite
def images(draw: Any) -> tuple[Tensor, float]:
    """x_nc* of any type, rank and memory layout, and its distance from zero in standard deviations."""
    n, groups, per_group = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    spatial = draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    dtype = draw(dtypes)
    far = draw(st.sampled_from([0.0, 10.0, 1e3]))
    if dtype in (torch.bfloat16, torch.float16):
        far = min(far, 10.0)  # at 1e3 these types hold no deviations of 1
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    shape = (n, groups * per_group, *spatial)
    x = torch.randn(*shape, generator=generator, dtype=torch.float64) + far
    layout = draw(st.sampled_from(["contiguous", "channels last", "strided batch", "rows of more"]))
    x = x.to(dtype)
    if layout == "channels last" and len(spatial) in (2, 3):
        x = x.contiguous(memory_format=torch.channels_last if len(spatial) == 2 else torch.channels_last_3d)
    elif layout == "strided batch":
        x = torch.stack([x, x + 1], 1)[:, 0]
    elif layout == "rows of more":
        x = torch.cat([x + 5, x, x - 5], 2).narrow(2, spatial[0], spatial[0])
    assert x.shape == shape
    return x, far


def groups_of(x: Tensor, draw: Any) -> int:
    return int(draw(st.sampled_from([g for g in range(1, x.shape[1] + 1) if x.shape[1] % g == 0])))


def check_stats(stats: Stats, x: Tensor) -> None:
    """Against a float64 computation over the same elements; the mean may cost no digits of the deviations."""
    wide = x.double().flatten(2)
    assert stats.count == wide.shape[2]
    assert stats.mean.dtype == stats.m2.dtype == torch.float64
    m2 = (wide - wide.mean(2, keepdim=True)).square().sum(2)
    largest, rounding = m2.max().item(), WIDE_ROUNDING[x.dtype]
    deviation, merging = math.sqrt(largest / stats.count), 1e-14 * (wide.abs().amax().item() + 1)
    torch.testing.assert_close(stats.mean, wide.mean(2), rtol=0, atol=4 * rounding * deviation + merging)
    bound = (8 * rounding * deviation + 2 * merging) * deviation * stats.count + merging**2 * stats.count
    torch.testing.assert_close(stats.m2, m2, rtol=0, atol=bound)


@given(images())
@few
def test_statistics_of_channels(made: tuple[Tensor, float]) -> None:
    check_stats(group_stats(made[0]), made[0])


@given(images(), st.integers(1, 64))
@few
def test_statistics_taken_in_blocks(made: tuple[Tensor, float], block: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "_CPU_BLOCK", block)
        check_stats(group_stats(made[0]), made[0])


@given(images(), st.data())
@few
def test_any_partition_merges_to_the_whole(made: tuple[Tensor, float], data: Any) -> None:
    x, _ = made
    dim = data.draw(st.integers(2, x.ndim - 1))
    size = x.shape[dim]
    cuts = sorted(data.draw(st.sets(st.integers(1, size - 1)))) if size > 1 else []
    parts = [group_stats(x.narrow(dim, a, b - a)) for a, b in zip([0, *cuts], [*cuts, size], strict=True)]
    order = data.draw(st.permutations(parts))
    merged = order[0]
    for part in order[1:]:
        merged = merge_stats(merged, part)
    check_stats(merged, x)


@given(images(), st.data())
@few
def test_groups_are_torch_group_norms(made: tuple[Tensor, float], data: Any) -> None:
    x, _ = made
    groups = groups_of(x, data.draw)
    got = group_stats(x).per_group(groups, EPS)
    wide = x.double().reshape(x.shape[0], groups, -1)
    mean, var = wide.mean(2), wide.var(2, unbiased=False)
    assert got.shape == (2, *x.shape[:2])
    per = x.shape[1] // groups
    want_mean, want_var = mean.repeat_interleave(per, 1), var.repeat_interleave(per, 1)
    rounding, merging = WIDE_ROUNDING[x.dtype], 1e-14 * (wide.abs().amax().item() + 1)
    deviation = math.sqrt(want_var.max().item())
    torch.testing.assert_close(got[0], want_mean, rtol=0, atol=8 * rounding * deviation + merging)
    bound = (8 * rounding * deviation + 4 * merging) * deviation + merging**2
    torch.testing.assert_close(got[1], want_var + EPS, rtol=1e-14, atol=bound)


@given(images(), st.data())
@few
def test_the_affine_map_is_group_norm_in_float64_rounded_once(made: tuple[Tensor, float], data: Any) -> None:
    x, far = made
    n, c = x.shape[:2]
    groups = groups_of(x, data.draw)
    generator = torch.Generator().manual_seed(3)
    with_weight, with_bias = data.draw(st.booleans()), data.draw(st.booleans())
    weight = torch.randn(c, generator=generator).to(x.dtype) + 1 if with_weight else None
    bias = torch.randn(c, generator=generator).to(x.dtype) if with_bias else None
    eps = 1e-2  # far above the rounding of a variance of one element, which is zero
    stats = group_stats(x).per_group(groups, eps)
    before = x.clone()
    got = norm_affine(x, stats, weight, bias)
    assert got.dtype == x.dtype
    assert got.shape == x.shape
    assert torch.equal(x, before)
    shape = (1, c, *[1] * (x.ndim - 2))
    normed = (x.double() - stats[0].view(n, *shape[1:])) / stats[1].sqrt().view(n, *shape[1:])
    want = normed * (1 if weight is None else weight.double().view(shape))
    want = want + (0 if bias is None else bias.double().view(shape))
    # scale·x + shift cancels: its rounding grows with the distance from zero in units of sqrt(var + eps)
    stretch = (stats[0].abs() / stats[1].sqrt()).max().item() * (1 if weight is None else weight.abs().max().item())
    bound = ROUNDING[x.dtype] * want.abs().amax().item() + WIDE_ROUNDING[x.dtype] * (1 + stretch)
    assert (got.double() - want).abs().max().item() <= 2 * bound
    assert far == 0 or stretch > 1


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_a_large_mean_costs_no_digits_of_the_variance(layout: torch.memory_format) -> None:
    """Sums of squares would lose them all: at a mean of 1e4 float32 resolves their difference to 6."""
    generator = torch.Generator().manual_seed(0)
    x = (torch.randn(2, 8, 64, 64, generator=generator) + 1e4).contiguous(memory_format=layout)
    var = group_stats(x).per_group(4, 0.0)[1]
    want = x.double().reshape(2, 4, -1).var(2, unbiased=False).repeat_interleave(2, 1)
    assert ((var - want) / want).abs().max().item() < 1e-6


def test_halves_are_summed_in_a_wide_type() -> None:
    x = torch.full((1, 2, 300, 300), 1000.0, dtype=torch.float16)
    x[:, 1, ::2] = -1000.0
    stats = group_stats(x)
    assert stats.mean.tolist() == [[1000.0, 0.0]]
    assert stats.m2[0, 0].item() == 0.0
    assert math.isclose(stats.m2[0, 1].item(), 300 * 300 * 1e6, rel_tol=1e-6)


def test_one_element_has_no_variance() -> None:
    x = torch.full((2, 4, 1, 1), 3.5)
    stats = group_stats(x)
    assert stats.count == 1
    assert stats.m2.abs().max().item() == 0.0
    got = norm_affine(x, stats.per_group(4, EPS), None, None)
    assert torch.equal(got, F.group_norm(x.expand(2, 4, 1, 2), 4, eps=EPS)[..., :1])


def test_channels_of_a_group_that_differ_spread_its_variance() -> None:
    x = torch.tensor([1.0, 3.0]).view(1, 2, 1, 1).expand(1, 2, 4, 4)
    mean, var = group_stats(x).per_group(1, 0.0)
    assert mean.tolist() == [[2.0, 2.0]]
    assert var.tolist() == [[1.0, 1.0]]


def test_not_a_number_stays_not_a_number() -> None:
    x = torch.zeros(1, 2, 3, 3)
    x[0, 0, 1, 1] = math.nan
    out = norm_affine(x, group_stats(x).per_group(2, EPS), None, None)
    assert out[0, 0].isnan().all()
    assert not out[0, 1].isnan().any()
