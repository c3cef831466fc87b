"""The CUDA level on a GPU, both forms of its ring, against float64."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tvae.kernels import Unsupported, cuda
from tvae.kernels.cuda.norm import add_stats, group_stats, norm_act
from tvae.kernels.cuda.ring import FORMS, Ring
from tvae.kernels.operations.finish_stats import finish_stats

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available() or cuda.missing() is not None, reason="needs the CUDA level"),
]

ROUNDING = {torch.float32: 1e-6, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-10}
"""Error of a result relative to its size: of its one rounding, and in float32 of the fast exponential."""
RINGS = (None, Ring(2, 1, 4096, 1), Ring(6, 3, 8192, 2), Ring(3, 2, 32768, 2), Ring(5, 4, 1024, 4))
LAYOUTS = ("dense", "band", "clip", "slice")


def forms() -> list[str]:
    major = torch.cuda.get_device_capability()[0] if torch.cuda.is_available() else 0
    return [form for form, needed in FORMS.items() if major >= needed]


def make(layout: str, n: int, c: int, h: int, w: int, dtype: torch.dtype, mean: float = 0.5) -> Tensor:
    """x_nc* with channels innermost: dense, a band of rows of a picture or of a clip, or some of more channels."""
    if layout == "dense":
        return (torch.randn(n, h, w, c, device="cuda") + mean).to(dtype).movedim(-1, 1)
    if layout == "band":
        return (torch.randn(n, h + 3, w, c, device="cuda") + mean).to(dtype)[:, 2 : 2 + h].movedim(-1, 1)
    if layout == "clip":
        return (torch.randn(n, 3, h + 2, w, c, device="cuda") + mean).to(dtype)[:, :, 1 : 1 + h].movedim(-1, 1)
    return (torch.randn(n, h, w, c + 32, device="cuda") + mean).to(dtype)[..., 16 : 16 + c].movedim(-1, 1)


def per_channel(values: Tensor, like: Tensor) -> Tensor:
    """[C] or [N, C] beside x_nc*."""
    return values.double().reshape(*values.shape[:-1] or (1,), values.shape[-1], *[1] * (like.ndim - 2))


def check_stats(parts: Tensor, y: Tensor) -> None:
    wide = y.double().flatten(2)
    count, mean, m2 = parts.unbind(2)
    assert parts.dtype == torch.float64
    assert torch.equal(count.sum(1), torch.full_like(count[:, 0], wide.shape[2]))
    merged = (count * mean).sum(1) / wide.shape[2]
    spread = (m2 + count * (mean - merged.unsqueeze(1)).square()).sum(1)
    expected = (wide - wide.mean(2, keepdim=True)).square().sum(2)
    deviation = (expected / wide.shape[2]).sqrt()
    assert ((merged - wide.mean(2)).abs() <= 2e-6 * deviation + 1e-13 * wide.abs().amax(2)).all()
    torch.testing.assert_close(spread, expected, rtol=1e-5, atol=1e-9)


def check(got: Tensor, expected: Tensor) -> None:
    rounding = ROUNDING[got.dtype]
    torch.testing.assert_close(got.double(), expected, rtol=rounding, atol=rounding)


def silu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


@pytest.fixture(params=forms())
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("dtype", list(ROUNDING))
@pytest.mark.parametrize("seed", range(4))
def test_random_maps(form: str, dtype: torch.dtype, seed: int) -> None:
    draw = random.Random(seed)
    torch.manual_seed(seed)
    for _ in range(10):
        c = draw.choice([8, 16, 40, 96, 128, 320, 512, 768, 1280, 2048])
        n, h, w = draw.randint(1, 3), draw.randint(1, 90), draw.randint(1, 70)
        layout, ring = draw.choice(LAYOUTS), draw.choice(RINGS)
        x = make(layout, n, c, h, w, dtype)
        affine = torch.randn(2, n, c, device="cuda")
        expected = x.double() * per_channel(affine[0], x) + per_channel(affine[1], x)
        options: dict[str, Any] = {"ring": ring, "form": form}
        try:
            check(norm_act(x, affine, None, **options), expected)
            check(norm_act(x, affine, "silu", **options), silu(expected))
            check_stats(group_stats(x, **options), x)
            residual = make(draw.choice([layout, "dense"]), n, c, h, w, dtype) if layout != "clip" else x * 2
            bias = torch.randn(c, device="cuda").to(draw.choice([dtype, torch.float32]))
            for r, b in ((residual, bias), (residual, None), (None, bias)):
                total = x.double() + (0 if r is None else r.double()) + (0 if b is None else per_channel(b, x))
                y, parts = add_stats(x, r, b, None, True, **options)
                check(y, total)
                assert parts is not None
                check_stats(parts, y)
                plain, none = add_stats(x, r, b, None, False, **options)
                assert none is None
                assert torch.equal(plain, y)
        except ValueError as error:  # of the explicit rings, some are too large for some cards and some channels
            if isinstance(error, Unsupported) or ring is None or "shared memory" not in str(error):
                raise


@pytest.mark.parametrize("layout", LAYOUTS)
def test_in_place(form: str, layout: str) -> None:
    x, residual = (make(layout, 2, 128, 61, 37, torch.bfloat16) for _ in range(2))
    bias = torch.randn(128, device="cuda")
    total = x.double() + residual.double() + per_channel(bias, x)
    copy, other = x.clone(), residual.clone()
    for into in (x, residual):
        y, parts = add_stats(x, residual, bias, into, True, form=form)
        assert y is into
        check(y, total)
        assert parts is not None
        check_stats(parts, y)
        x.copy_(copy)
        residual.copy_(other)


def test_out_of_another_layout(form: str) -> None:
    x = make("clip", 2, 64, 20, 9, torch.float16)
    dense = torch.empty(2, 3, 20, 9, 64, device="cuda", dtype=torch.float16).movedim(-1, 1)
    y, _ = add_stats(x, None, torch.ones(64, device="cuda"), dense, False, form=form)
    assert y is dense
    check(dense, x.double() + 1)


def test_nothing_to_add(form: str) -> None:
    x = make("dense", 1, 64, 33, 21, torch.bfloat16)
    y, parts = add_stats(x, None, None, None, True, form=form)
    assert y is x
    assert parts is not None
    check_stats(parts, x)


def test_rows_beside_a_band_stay_as_they_are(form: str) -> None:
    whole = torch.randn(2, 40, 30, 128, device="cuda").bfloat16().movedim(-1, 1)
    before = whole.clone()
    band = whole[:, :, 7:29]
    add_stats(band, band.clone(), None, band, True, form=form)
    assert torch.equal(whole[:, :, :7], before[:, :, :7])
    assert torch.equal(whole[:, :, 29:], before[:, :, 29:])
    assert torch.equal(band, before[:, :, 7:29] * 2)


def test_a_large_mean_costs_no_digits(form: str) -> None:
    x = make("dense", 1, 64, 300, 200, torch.float32, mean=1000.0)
    wide = x.double().flatten(2)
    parts = group_stats(x, form=form)
    affine = finish_stats(parts, 64, 0.0, None, None, None)
    torch.testing.assert_close(affine[0].double(), wide.var(2, correction=0).rsqrt(), rtol=3e-6, atol=0)


def test_nan_stays_in_its_channel(form: str) -> None:
    x = make("dense", 1, 64, 50, 40, torch.bfloat16)
    x[0, 5, 31, 7] = float("nan")
    x[0, 9, 0, 0] = float("nan")
    parts = group_stats(x, form=form)
    broken = parts[:, :, 1:].isnan().any(2).any(1)[0].nonzero().flatten().tolist()
    assert broken == [5, 9]
    y = norm_act(x, torch.ones(2, 1, 64, device="cuda"), "silu", form=form)
    assert torch.equal(y.isnan(), x.isnan())


def test_extreme_values(form: str) -> None:
    values = torch.tensor([float("inf"), 1e38, 100.0, 88.0, 0.0, -0.0, -20.0, -87.0, -89.0, -1e4, -1e38], device="cuda")
    x = values.repeat_interleave(64).reshape(1, 1, -1, 64).movedim(-1, 1)
    affine = torch.stack([torch.ones(1, 64), torch.zeros(1, 64)]).cuda()
    got = norm_act(x, affine, "silu", form=form)[0, 0, 0].double()
    torch.testing.assert_close(got, silu(values.double()), rtol=3e-6, atol=1e-30)


def test_one_pixel(form: str) -> None:
    x = torch.randn(3, 256, 1, 1, device="cuda")
    parts = group_stats(x, form=form)
    assert torch.equal(parts[:, 0, 1], x.flatten(1).double())
    assert torch.equal(parts[:, 0, 2], torch.zeros_like(parts[:, 0, 2]))
    assert torch.equal(norm_act(x, torch.ones(2, 3, 256, device="cuda"), None, form=form), x + 1)


def test_captured_in_a_graph(form: str) -> None:
    x = make("dense", 1, 128, 64, 64, torch.bfloat16)
    weight = torch.randn(128, device="cuda")

    def run() -> Tensor:
        y, parts = add_stats(x, x, weight, None, True, form=form)
        assert parts is not None
        return norm_act(y, finish_stats(parts, 32, 1e-6, weight, weight, None), "silu", form=form)

    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run()
    x.copy_(make("dense", 1, 128, 64, 64, torch.bfloat16))
    graph.replay()
    assert torch.equal(captured, run())


def test_runs_on_the_current_stream_of_any_thread(form: str) -> None:
    x = make("dense", 1, 128, 512, 512, torch.bfloat16)
    results: list[Tensor] = []

    def run() -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            y = x
            for _ in range(20):
                y = add_stats(y, None, torch.ones(128, device="cuda"), None, False, form=form)[0]
            results.append(y)
        stream.synchronize()

    expected = x
    for _ in range(20):
        expected = expected + torch.ones_like(x)
    torch.cuda.synchronize()
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert torch.equal(results[0], expected)


def test_more_than_two_to_the_31_elements(form: str) -> None:
    if torch.cuda.mem_get_info()[0] < 24 << 30:
        pytest.skip("needs 24 GiB")
    h, c = 4200, 128
    x = torch.zeros(1, h, h, c, device="cuda", dtype=torch.bfloat16).movedim(-1, 1)
    assert x.numel() > 1 << 31
    x[:, :, -1, -9:] = 3.0
    x[:, :, 0, :4] = -2.0
    affine = torch.stack([torch.full((1, c), 2.0), torch.ones(1, c)]).cuda()
    y = norm_act(x, affine, None, form=form)
    assert (y[:, :, -1, -9:] == 7).all()
    assert (y[:, :, 0, :4] == -3).all()
    assert (y[:, :, h // 2] == 1).all()
    del y
    _, parts = add_stats(x, x, None, x, True, form=form)
    assert (x[:, :, -1, -9:] == 6).all()
    assert (x[:, :, 0, :4] == -4).all()
    assert parts is not None
    assert (parts[:, :, 0].sum(1) == h * h).all()
    torch.testing.assert_close((parts[:, :, 0] * parts[:, :, 1]).sum(1), torch.full_like(parts[:, 0, 0], 38.0))


@pytest.mark.parametrize(
    ("make_call", "reason"),
    [
        (lambda x: group_stats(x.contiguous()), "not innermost"),
        (lambda x: group_stats(x.double()), "not a type"),
        (lambda x: group_stats(x[:, 1:17]), "start at a multiple"),
        (lambda x: norm_act(x, torch.ones(2, 1, 32, device="cuda"), "gelu"), "gelu"),
        (lambda x: norm_act(x, torch.ones(2, 1, 32, device="cuda").double(), None), "factors"),
        (lambda x: group_stats(x.float().requires_grad_()), "gradients"),
    ],
)
def test_what_is_not_taken(make_call: Callable[[Tensor], Any], reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        make_call(make("dense", 1, 32, 5, 5, torch.bfloat16))


def test_a_ring_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(ValueError, match="bytes of shared memory"):
        group_stats(make("dense", 1, 32, 500, 500, torch.bfloat16), ring=Ring(8, 7, 1 << 16))
