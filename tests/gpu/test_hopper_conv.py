"""3x3 convolutions on Hopper's tensor cores, against float64: any size, batches, bands, sums, statistics."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tvae.kernels import Unsupported
from tvae.kernels.check import deviation
from tvae.kernels.cuda import hopper_conv
from tvae.kernels.cuda.conv_add import conv_add
from tvae.kernels.cuda.down_conv import down_conv
from tvae.kernels.cuda.enlarge_conv import enlarge_conv
from tvae.kernels.operations.conv_add import case as conv_add_case
from tvae.kernels.operations.down_conv import case as down_conv_case
from tvae.kernels.operations.enlarge_conv import case as enlarge_conv_case
from tvae.kernels.oracle import Oracle

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(hopper_conv.missing() is not None, reason=f"{hopper_conv.missing()}"),
]
TYPES = [torch.bfloat16, torch.float16]
ALL = 1, 1, 1, 1


@pytest.fixture(autouse=True)
def _any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hopper_conv, "_BUSY", 0.0)
    monkeypatch.setattr(hopper_conv, "_BUSY_CLIP", 0.0)
    monkeypatch.setattr("tvae.kernels.cudnn_sum.check", lambda *_: pytest.fail("left to cuDNN"))


def maps(inner: int, outer: int, h: int, w: int, n: int = 1, dtype: torch.dtype = torch.bfloat16) -> tuple[Tensor, ...]:
    """x, weight and a residual, channels innermost."""
    made = torch.randn(n, inner, h, w), torch.randn(outer, inner, 3, 3) / (3 * inner**0.5), torch.randn(n, outer, h, w)
    return tuple(t.to("cuda", dtype).contiguous(memory_format=torch.channels_last) for t in made)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_random_calls(dtype: torch.dtype) -> None:
    pick = random.Random(f"{dtype}")
    oracle = Oracle(dtype, torch.device("cuda"))
    for _ in range(60):
        n, inner, outer = pick.choice((1, 1, 2, 5)), 64 * pick.randint(1, 5), 128 * pick.randint(1, 4)
        h, w = pick.choice((2, 16, 33, pick.randint(2, 150))), pick.choice((1, 7, 16, pick.randint(1, 150)))
        pads = 1, 1, pick.randint(0, 1), pick.randint(0, 1)
        more = {name: pick.random() < 0.5 for name in ("residual", "bias", "stats", "into", "aliased")}
        case = conv_add_case(
            oracle, f"{[n, inner, outer, h, w]} {pads} {more}", n, inner, outer, h + 1, w, pads=pads, **more
        )
        found = deviation(case, conv_add)
        assert found.passed, f"{case.label}: {found}"


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_random_clips(dtype: torch.dtype) -> None:
    pick = random.Random(f"clips {dtype}")
    for _ in range(30):
        n, inner, outer = pick.choice((1, 1, 2)), 64 * pick.randint(1, 4), 128 * pick.randint(1, 3)
        t, h, w = pick.randint(3, 7), pick.randint(3, 50), pick.randint(3, 50)
        padding, taps = (pick.randint(0, 2), pick.randint(0, 1), pick.randint(0, 1)), pick.randint(1, 3)
        made = (
            torch.randn(n, inner, t + 1, h + 2, w),
            torch.randn(outer, inner, taps, 3, 3) / (3 * (taps * inner) ** 0.5),
        )
        x, weight = (m.to("cuda", dtype).contiguous(memory_format=torch.channels_last_3d) for m in made)
        x, bias = x[:, :, 1:, 1:-1], torch.randn(outer, device="cuda") if pick.random() < 0.5 else None
        y = hopper_conv.conv3d(x, weight, bias, padding)
        want = F.conv3d(x.double(), weight.double(), None if bias is None else bias.double(), 1, padding)
        assert y.shape == want.shape
        label = f"{[n, inner, outer, t, h, w]} {padding} {taps}"
        assert float((y.double() - want).norm() / want.norm()) < (2e-3 if dtype == torch.bfloat16 else 3e-4), label
        assert float((y.double() - want).abs().max()) < 0.05, label


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_random_enlarged_pictures(dtype: torch.dtype) -> None:
    pick = random.Random(f"enlarged {dtype}")
    oracle = Oracle(dtype, torch.device("cuda"))
    for _ in range(40):
        n, inner, outer = pick.choice((1, 1, 2, 5)), 64 * pick.randint(1, 5), 128 * pick.randint(1, 4)
        h, w = pick.choice((2, 16, 33, pick.randint(2, 90))), pick.choice((2, 7, 16, pick.randint(2, 90)))
        pads = pick.randint(0, 1), 1, pick.randint(0, 1), pick.randint(0, 1)
        more = {name: pick.random() < 0.5 for name in ("bias", "stats", "into")}
        case = enlarge_conv_case(
            oracle, f"{[n, inner, outer, h, w]} {pads} {more}", n, inner, outer, h + 1, w, pads=pads, **more
        )
        found = deviation(case, enlarge_conv)
        assert found.passed, f"{case.label}: {found}"


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_random_halved_pictures(dtype: torch.dtype) -> None:
    pick = random.Random(f"halved {dtype}")
    oracle = Oracle(dtype, torch.device("cuda"))
    for _ in range(60):
        n, inner, outer = pick.choice((1, 1, 2, 5)), 64 * pick.randint(1, 5), 128 * pick.randint(1, 4)
        h, w = (2 * pick.choice((2, 16, 17, pick.randint(2, 90))) for _ in range(2))
        pads = pick.randint(0, 1), pick.randint(0, 1)
        more = {name: pick.random() < 0.5 for name in ("bias", "stats", "into")}
        case = down_conv_case(
            oracle, f"{[n, inner, outer, h, w]} {pads} {more}", n, inner, outer, h, w, pads=pads, **more
        )
        found = deviation(case, down_conv)
        assert found.passed, f"{case.label}: {found}"


def test_bands_of_a_halved_picture_have_the_same_bits() -> None:
    """Of a map in whose place other values lie behind the band."""
    x, weight, _ = maps(192, 256, 300, 100, n=2)
    whole, parts = down_conv(x, weight, None, (1, 1), None, True)
    for _ in range(5):
        again, same = down_conv(x, weight, None, (1, 1), None, True)
        assert torch.equal(again, whole)
        assert parts is not None
        assert same is not None
        assert torch.equal(same, parts)
    for a, b in ((0, 50), (50, 93), (93, 150)):
        last = min(2 * b + 2, 300)
        around = torch.full_like(whole, 7.0)
        down_conv(x[:, :, 2 * a : last], weight, None, (1, int(last == 2 * b)), around[:, :, a:b], True)
        assert torch.equal(around[:, :, a:b], whole[:, :, a:b])
        around[:, :, a:b] = 7.0
        assert bool((around == 7).all())


def test_bands_of_an_enlarged_picture_have_the_same_bits() -> None:
    x, _, _ = maps(192, 128, 150, 100, n=2)
    taps = torch.randn(256, 192, 4, 4) / 28
    taps = taps.to(x).contiguous(memory_format=torch.channels_last)
    whole, parts = enlarge_conv(x, taps, None, ALL, None, True)
    for _ in range(5):
        again, same = enlarge_conv(x, taps, None, ALL, None, True)
        assert torch.equal(again, whole)
        assert parts is not None
        assert same is not None
        assert torch.equal(same, parts)
    for a, b in ((0, 50), (50, 93), (93, 150)):
        first, last = max(0, a - 1), min(150, b + 1)
        around = torch.full_like(whole, 7.0)
        out = around[:, :, 2 * a : 2 * b]
        enlarge_conv(x[:, :, first:last], taps, None, (1, 1, first - a + 1, b + 1 - last), out, True)
        assert torch.equal(out, whole[:, :, 2 * a : 2 * b])
        out.fill_(7.0)
        assert bool((around == 7).all())


def test_columns_and_steps_of_other_maps() -> None:
    x, weight, r = maps(128, 128, 90, 70)
    part, rest = x[:, :, 3:40, 5:38], r[:, :, 10:47, 1:34]
    want = F.conv2d(part.double(), weight.double(), padding=1) + rest.double()
    got, _ = conv_add(part, weight, rest, None, ALL, None, False)
    torch.testing.assert_close(got.double(), want, rtol=2e-2, atol=2e-2)
    sparse = x[:, :, ::2, ::2]
    got, _ = conv_add(sparse, weight, None, None, ALL, None, False)
    torch.testing.assert_close(
        got.double(), F.conv2d(sparse.double(), weight.double(), padding=1), rtol=2e-2, atol=2e-2
    )


def test_nothing_is_written_beside_the_result() -> None:
    x, weight, _ = maps(64, 128, 21, 19)
    around = torch.full((1, 128, 41, 39), 7.0, device="cuda", dtype=x.dtype).contiguous(
        memory_format=torch.channels_last
    )
    out = around[:, :, 10:31, 10:29]
    conv_add(x, weight, None, None, ALL, out, True)
    torch.testing.assert_close(out.double(), F.conv2d(x.double(), weight.double(), padding=1), rtol=2e-2, atol=2e-2)
    out.fill_(7.0)
    assert bool((around == 7).all())


def test_bands_and_repeated_calls_give_the_same_bits() -> None:
    x, weight, r = maps(192, 256, 300, 200, n=2)
    whole, parts = conv_add(x, weight, r, None, ALL, None, True)
    for _ in range(5):
        again, same = conv_add(x, weight, r, None, ALL, None, True)
        assert torch.equal(again, whole)
        assert parts is not None
        assert same is not None
        assert torch.equal(same, parts)
    for a, b in ((0, 100), (100, 187), (187, 300)):
        first, last = max(0, a - 1), min(300, b + 1)
        pads = 1, 1, first - a + 1, b + 1 - last
        band, _ = conv_add(x[:, :, first:last], weight, r[:, :, a:b], None, pads, None, True)
        assert torch.equal(band, whole[:, :, a:b])


def test_values_far_from_zero_have_statistics_as_good() -> None:
    x, weight, r = maps(128, 128, 200, 100)
    r += 300
    y, parts = conv_add(x, weight, r, None, ALL, None, True)
    assert parts is not None
    count, mean, m2 = parts.unbind(2)
    total = count.sum(1)
    centre = (count * mean).sum(1) / total
    var = (m2 + count * (mean - centre[:, None]) ** 2).sum(1) / total
    flat = y.double().flatten(2)
    torch.testing.assert_close(centre, flat.mean(2), rtol=1e-6, atol=0)
    torch.testing.assert_close(var, flat.var(2, correction=0), rtol=1e-4, atol=0)


def test_what_is_not_a_number_stays_where_it_was() -> None:
    x, weight, _ = maps(64, 128, 40, 40)
    x[0, 3, 20, 20] = float("nan")
    y, parts = conv_add(x, weight, None, None, ALL, None, True)
    bad = y.isnan().any(1)[0].nonzero()
    assert bad.amin(0).tolist() == [19, 19]
    assert bad.amax(0).tolist() == [21, 21]
    assert len(bad) == 9
    assert parts is not None
    assert bool(parts[:, :, 1].isnan().any(1).all())


def test_maps_of_more_than_two_to_the_31_elements() -> None:
    if torch.cuda.get_device_properties(0).total_memory < 60e9:
        pytest.skip("needs 60 GB of GPU memory")
    _, weight, _ = maps(128, 128, 8, 8)
    x = torch.empty((1, 4104, 4104, 128), dtype=torch.bfloat16, device="cuda").movedim(-1, 1)
    for rows in x.split(216, 2):
        rows.normal_()
    y, parts = conv_add(x, weight, None, None, ALL, None, True)
    for a in (0, 2**31 // (4104 * 128) - 4, 4104 - 8):
        first, last = max(0, a - 1), min(4104, a + 9)
        band = F.conv2d(x[:, :, first:last].float(), weight.float(), padding=1)[:, :, a - first :][:, :, :8]
        torch.testing.assert_close(y[:, :, a : a + 8].float(), band, rtol=2e-2, atol=2e-2)
    assert parts is not None
    assert bool((parts[:, :, 0].sum(1) == 4104 * 4104).all())


def test_an_enlarged_picture_of_more_than_two_to_the_31_elements() -> None:
    if torch.cuda.get_device_properties(0).total_memory < 60e9:
        pytest.skip("needs 60 GB of GPU memory")
    x, *_ = maps(64, 128, 2052, 2052)
    taps = (torch.randn(128, 64, 4, 4) / 16).to(x).contiguous(memory_format=torch.channels_last)
    y, parts = enlarge_conv(x, taps, None, ALL, None, True)
    assert y.numel() > 2**31
    for a in (0, 2**31 // (4104 * 128) // 2 - 2, 2052 - 4):
        first, last = max(0, a - 1), min(2052, a + 5)
        band = F.conv_transpose2d(x[:, :, first:last].float(), taps.transpose(0, 1).float(), stride=2, padding=1)
        band = band[:, :, 2 * (a - first) :][:, :, :8]
        torch.testing.assert_close(y[:, :, 2 * a : 2 * a + 8].float(), band, rtol=2e-2, atol=2e-2)
    assert parts is not None
    assert bool((parts[:, :, 0].sum(1) == 4104 * 4104).all())


def test_it_can_be_captured() -> None:
    x, weight, r = maps(128, 128, 64, 64)
    conv_add(x, weight, r, None, ALL, None, True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y, _ = conv_add(x, weight, r, None, ALL, None, True)
    x.normal_()
    graph.replay()
    torch.testing.assert_close(y, conv_add(x, weight, r, None, ALL, None, False)[0], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("inner", "outer", "change"),
    [
        (96, 128, "x"),
        (64, 192, "x"),
        (64, 128, "planes"),
        (64, 128, "weight planes"),
        (64, 128, "float32"),
        (64, 128, "another size"),
    ],
)
def test_what_it_does_not_take_is_refused(inner: int, outer: int, change: str) -> None:
    x, weight, _ = maps(inner, outer, 32, 32)
    y = torch.empty(1, outer, 32, 32, device="cuda", dtype=x.dtype).contiguous(memory_format=torch.channels_last)
    if change == "planes":
        x = x.contiguous()
    elif change == "weight planes":
        weight = weight.contiguous()
    elif change == "float32":
        x, weight, y = x.float(), weight.float(), y.float()
    elif change == "another size":
        y = y[:, :, 1:]
    with pytest.raises(Unsupported):
        hopper_conv.conv_add(x, weight, None, None, ALL, y, True)
