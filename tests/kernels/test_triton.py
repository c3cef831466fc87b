"""The Triton kernels against float64, by Triton's interpreter where there is no GPU."""

from __future__ import annotations

import math
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

if find_spec("triton") is None:
    pytest.skip("needs Triton", allow_module_level=True)
import interpreted  # noqa: F401  (before Triton)
from kernel_inputs import channels_last, groups_of, images, laid_out, normal, per_channel, rounding, silu

from tvae.kernels.operations.finish_stats import finish_stats as defined_finish_stats
from tvae.kernels.operations.rms_norm_act import rms_norm_act as defined_rms_norm_act
from tvae.kernels.triton import finish, norm, rms, statistics
from tvae.kernels.triton.launch import INTERPRETED, Tuning

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of overflows that a GPU is silent about
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TYPES = (torch.float32, torch.bfloat16, torch.float16)
LAYOUTS = ["channels last", "channels last, rows of more"]
WIDE = 2.0**-24
few = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
group_stats, finish_stats = statistics.group_stats, finish.finish_stats
norm_act, add_stats = norm.norm_act, statistics.add_stats
rms_norm_act = rms.rms_norm_act


@pytest.fixture
def small_tiles() -> Iterator[None]:
    """So that a few pixels are many tiles and blocks of statistics."""
    tiny = Tuning(tile_bytes=128, warps=4, per_sm=2, stages=2)
    with pytest.MonkeyPatch.context() as patch:
        for module, name in (
            (statistics, "STATS"),
            (statistics, "SMALL"),
            (statistics, "ADD"),
            (norm, "NORM"),
            (rms, "RMS"),
        ):
            patch.setattr(module, name, tiny)
        patch.setattr(finish, "TILE", 32)
        yield


def test_another_tuning_is_taken_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """How a launch is cut is kept for its layout, and for the tuning."""
    x = torch.randn(1, 16, 64, 64, device=DEVICE).contiguous(memory_format=torch.channels_last)
    before = group_stats(x).shape[1]
    more = {"per_sm": 4 * statistics.SMALL.per_sm, "tile_bytes": statistics.SMALL.tile_bytes // 4}
    monkeypatch.setattr(statistics, "SMALL", statistics.SMALL._replace(**more))
    assert group_stats(x).shape[1] > before


def once(dtype: torch.dtype) -> float:
    """Relative error of the rounding of a result; the interpreter truncates to bfloat16."""
    return rounding(dtype) * (2.02 if INTERPRETED and dtype == torch.bfloat16 else 1.01)


@st.composite
def maps(draw: Any) -> Tensor:
    """x_nc* with its channels innermost, of a type that the kernels take: more pixels than ``images`` has."""
    made = draw(images(types=TYPES))
    x = made.repeat(1, draw(st.sampled_from([1, 3, 17])), *[1] * (made.ndim - 3), draw(st.sampled_from([1, 9])))
    return laid_out(x, draw(st.sampled_from(LAYOUTS))).to(DEVICE)


def merged(parts: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """(mean, variance) of parts_nb3c of x, in float64."""
    assert parts.dtype == torch.float64
    assert parts.shape == (x.shape[0], parts.shape[1], 3, x.shape[1])
    count, mean, m2 = parts.unbind(2)
    size = math.prod(x.shape[2:])
    assert (count.sum(1) == size).all()
    assert (count > 0).all()
    whole = (count * mean).sum(1) / size
    return whole, (m2 + count * (mean - whole[:, None]).square()).sum(1) / size


def check_stats(parts: Tensor, x: Tensor) -> None:
    mean, var = merged(parts, x)
    wide = x.double().flatten(2)
    want = wide.var(2, unbiased=False)
    deviation = math.sqrt(want.max().item())
    # tiles of a pixel or two: hundreds of terms in one float32 sum, and hardly another sum to average with; of tiles of
    # many pixels the interpreter adds these one by one, where a card adds them in pairs
    torch.testing.assert_close(mean, wide.mean(2), rtol=0, atol=64 * WIDE * deviation + 1e-12)
    torch.testing.assert_close(var, want, rtol=0, atol=256 * WIDE * deviation**2 + 1e-11 * (deviation + 1))


@given(maps())
@few
@pytest.mark.usefixtures("small_tiles")
def test_statistics_of_channels(x: Tensor) -> None:
    check_stats(group_stats(x), x)


@pytest.mark.parametrize("shape", [(1, 128, 40, 50), (2, 96, 33, 5), (1, 520, 9, 9), (1, 3, 70, 70)], ids=str)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_tiles_as_they_are_used(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = channels_last(normal(shape, 0) + 3).to(dtype).to(DEVICE)
    check_stats(group_stats(x), x)
    affine = normal((2, *shape[:2]), 1).float().to(DEVICE)
    got = norm_act(x, affine, "silu").double()
    want = silu(x.double() * per_channel(affine[0], x) + per_channel(affine[1], x))
    assert ((got - want).norm() / want.norm()).item() < once(dtype) + 4 * WIDE


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize(("far", "off"), [(0.0, 1e-6), (1e3, 1e-6), (-1e5, 4e-6)])
def test_a_large_mean_costs_no_digits(far: float, off: float) -> None:
    x = channels_last((normal((1, 16, 40, 50), 0) + far).float()).to(DEVICE)
    want = x.double().flatten(2).var(2, unbiased=False)
    assert (merged(group_stats(x), x)[1] / want - 1).abs().max().item() < off


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("at", [(0, 0), (0, 5), (39, 49)])
def test_an_outlier_costs_no_digits(at: tuple[int, int]) -> None:
    """Where it lies on the pixels that the sums are taken around too."""
    x = channels_last(normal((1, 16, 40, 50), 0).float()).to(DEVICE)
    x[:, :, at[0], at[1]] = 1e5
    want = x.double().flatten(2).var(2, unbiased=False)
    assert (merged(group_stats(x), x)[1] / want - 1).abs().max().item() < 1e-6


def test_constants_have_no_variance_and_what_is_not_finite_stays_so() -> None:
    x = channels_last(torch.full((1, 4, 5, 7), 1000.3)).to(DEVICE)
    x[0, 1, 2, 2], x[0, 2, 0, 0] = math.nan, math.inf
    mean, var = merged(group_stats(x), x)
    assert mean[0, 0].item() == mean[0, 3].item() == x[0, 0, 0, 0].item()
    assert var[0, 0].item() == var[0, 3].item() == 0.0
    assert not mean[0, 1:3].isfinite().any()
    assert var[0, 1:3].isnan().all()
    affine = finish_stats(group_stats(x), 4, 1e-5, None, None, None)
    assert affine[:, 0, 1:3].isnan().all()
    assert affine[:, 0, [0, 3]].isfinite().all()
    normed = norm_act(x, torch.ones(2, 1, 4, device=DEVICE), "silu")
    assert normed[0, 1].isnan().sum().item() == normed[0, 1, 2, 2].isnan().item() == 1


@given(st.data())
@few
@pytest.mark.usefixtures("small_tiles")
def test_the_affine_is_the_definitions(data: Any) -> None:
    draw = data.draw
    n, blocks, c = draw(st.integers(1, 3)), draw(st.integers(1, 40)), draw(st.integers(1, 24))
    x = torch.empty(1, c, 1)
    parts = torch.stack(
        [normal((n, blocks, c), 1).abs() * 50 + 1, normal((n, blocks, c), 2) + 30, normal((n, blocks, c), 3).square()],
        2,
    )
    given = [normal((c,), i).to(draw(st.sampled_from(TYPES))) if draw(st.booleans()) else None for i in (4, 5, 6)]
    groups = groups_of(x, draw)
    want = defined_finish_stats(parts, groups, 1e-3, *(None if t is None else t.double() for t in given)).double()
    there = [None if t is None else t.to(DEVICE) for t in given]
    got = finish_stats(parts.to(DEVICE), groups, 1e-3, *there)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.cpu().double(), want, rtol=2 * WIDE, atol=1e-12)


@given(maps(), st.data())
@few
@pytest.mark.usefixtures("small_tiles")
def test_the_affine_map_is_rounded_once(x: Tensor, data: Any) -> None:
    affine = normal((2, *x.shape[:2]), 5).float().to(DEVICE)
    act = data.draw(st.sampled_from([None, "silu"]))
    before = x.clone()
    got = norm_act(x, affine, act)
    assert torch.equal(x, before)
    assert (got.dtype, got.shape) == (x.dtype, x.shape)
    assert got.movedim(1, -1).is_contiguous()
    scale, shift = (per_channel(t, x) for t in affine.double())
    want, terms = x.double() * scale + shift, (x.double() * scale).abs() + shift.abs()
    bound = 4 * WIDE * terms
    if act:  # its slope is at most 1.1
        want, bound = silu(want), 1.1 * bound + 1e-7
    assert ((got.double() - want).abs() <= bound + (once(x.dtype) + 4 * WIDE) * want.abs()).all()


@given(maps(), st.data())
@few
@pytest.mark.usefixtures("small_tiles")
def test_sums_and_their_statistics(x: Tensor, data: Any) -> None:
    draw = data.draw
    layout = draw(st.sampled_from(LAYOUTS))
    residual = laid_out(normal(tuple(x.shape), 8).to(x.dtype), layout).to(DEVICE) if draw(st.booleans()) else None
    bias = normal((x.shape[1],), 9).to(draw(st.sampled_from(TYPES))).to(DEVICE) if draw(st.booleans()) else None
    want = x.double() + (0 if residual is None else residual.double())
    size = x.double().abs() + (0 if residual is None else residual.double().abs()) + 4
    want = want if bias is None else want + per_channel(bias.double(), x)
    stats, where = draw(st.booleans()), draw(st.sampled_from(["new", "itself", "part"]))
    before = x.clone()
    around = torch.full((x.shape[0], *x.shape[2:], x.shape[1]), 7.0, dtype=x.dtype, device=DEVICE).movedim(-1, 1)
    around = torch.cat([around] * 3, 2).movedim(1, -1).contiguous().movedim(-1, 1)
    part = around.narrow(2, x.shape[2], x.shape[2])
    out = {"new": None, "itself": x, "part": part}[where]
    y, parts = add_stats(x, residual, bias, out, stats)
    assert (y is out) or (out is None)
    assert ((y.double() - want).abs() <= once(x.dtype) * want.abs() + 4 * WIDE * size).all()
    assert (parts is not None) == stats
    if parts is not None:
        check_stats(parts, y)
    if where == "part":
        part.fill_(7.0)
        assert (around == 7.0).all()
    if where != "itself":
        assert torch.equal(x, before)


def test_nothing_to_add_copies_nothing() -> None:
    x = channels_last(normal((1, 4, 6, 6), 0).float()).to(DEVICE)
    y, parts = add_stats(x, None, None, None, True)
    assert y is x
    check_stats(parts, x)
    assert add_stats(x, None, None, x, False) == (x, None)


@given(maps(), st.data())
@few
@pytest.mark.usefixtures("small_tiles")
def test_norms_of_pixels(x: Tensor, data: Any) -> None:
    draw = data.draw
    form, act = draw(st.sampled_from(["normalize", "rms"])), draw(st.sampled_from([None, "silu"]))
    given = [normal((x.shape[1],), i).to(draw(st.sampled_from(TYPES))) if draw(st.booleans()) else None for i in (1, 2)]
    there = [None if t is None else t.to(DEVICE) for t in given]
    out = None
    if draw(st.booleans()):  # the last frames or rows of memory that has more
        room = [*x.shape[:2], x.shape[2] + 1, *x.shape[3:]]
        out = channels_last(torch.full(room, math.nan, dtype=x.dtype)).to(DEVICE)[:, :, 1:]
    got = rms_norm_act(x, *there, 1e-3, form, act, None, out)
    assert out is None or got is out
    wide = [None if t is None else t.double() for t in there]
    linear = defined_rms_norm_act(x.double(), *wide, 1e-3, form, None)
    want = silu(linear) if act else linear
    terms = linear.abs() if wide[1] is None else linear.abs() + 2 * per_channel(wide[1], x).abs()
    assert ((got.double() - want).abs() <= once(x.dtype) * want.abs() + 16 * WIDE * (terms + want.abs()) + 1e-7).all()


def test_a_pixel_of_zeros_and_one_that_is_no_number() -> None:
    x = channels_last(torch.ones(1, 5, 3, 1)).to(DEVICE)
    x[:, :, 0], x[0, 2, 1] = 0.0, math.nan
    for form in ("normalize", "rms"):
        y = rms_norm_act(x, None, None, 1e-6, form, None)
        assert not y[:, :, 0].any()
        assert y[:, :, 1].isnan().all()
        torch.testing.assert_close(y[:, :, 2], x[:, :, 2], rtol=1e-5, atol=0)


@pytest.mark.usefixtures("small_tiles")
def test_together_they_are_group_norm() -> None:
    h, r = (channels_last(normal((2, 32, 9, 11), i)).float().to(DEVICE) for i in (1, 2))
    weight, bias, offset = (normal((32,), i).float().to(DEVICE) for i in (3, 4, 5))
    y, parts = add_stats(h, r, None, None, True)
    got = norm_act(y, finish_stats(parts, 8, 1e-6, weight, bias, offset), "silu").double()
    moved = h.double() + r.double() + per_channel(offset.double(), h)
    want = F.silu(F.group_norm(moved, 8, weight.double(), bias.double(), 1e-6))
    assert ((got - want).norm() / want.norm()).item() < 1e-6
