"""Rules of products: linear layers, einsum, summed kernels, the nearest code of a table."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from one_op import CPU, Case, Draw, OneOp, check, folded, heights, image, tokens, widths
from refusals import refused_and_exact
from small_functions import captured, run
from told_kernels import telling
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from tvae.kernels import Kernels
from tvae.pipeline.engine.ir.fused_ops import enlarging_taps, nearest_code_bytes, subpixel_weight
from tvae.pipeline.engine.ir.fused_ops import nearest_code as nearest_codes
from tvae.pipeline.engine.ir.graph import Ref
from tvae.pipeline.engine.lower import lower
from tvae.pipeline.engine.passes import simplify
from tvae.pipeline.engine.plan.schedule import schedule
from tvae.pipeline.engine.run.execute import execute
from tvae.pipeline.errors import UnsupportedOp


@pytest.mark.parametrize("bias", [False, True])
def test_every_strip_is_one_call(bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[tuple[tuple[int, ...], bool]] = []

    def note(operation: str, *args: Tensor | None) -> None:
        if operation == "linear":
            x, _, shift = args
            assert x is not None
            heard.append((tuple(x.shape), shift is not None))

    def fn(m: nn.Module, x: Tensor) -> Tensor:
        pixels = m.conv(x).permute(0, 2, 3, 1)
        return F.linear(pixels, m.conv.weight[:, :, 1, 1], m.conv.bias if bias else None).permute(0, 3, 1, 2)

    graph, module = captured(fn)
    x = torch.randn(1, 3, 8, 5, generator=torch.Generator().manual_seed(1))
    monkeypatch.setattr(Kernels, "_chain", telling(note))
    found = run(simplify(graph), dict(module.named_parameters()), x, strip=3)
    assert heard == [((1, rows, 5, 3), bias) for rows in (3, 3, 2)]
    with torch.no_grad():
        torch.testing.assert_close(found, fn(module, x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rows_of_two_pictures_are_rounded_once(dtype: torch.dtype) -> None:
    """Those of a stored value do not lie in a row."""
    g = OneOp(24, 24, dtype)
    x = g.call("cumsum.default", g.input(2, "h", "w", 12), 1)
    weight, bias = g.param(24, 12), g.param(24)
    g.gives(g.call("linear.default", x, weight, bias, shape=(2, "h", "w", 24)))
    wide = [g.value(v).double() for v in (x, weight, bias)]
    want = F.linear(*wide)
    (got,) = execute(schedule(lower(g.graph, g.sizes, CPU), 3), g.inputs(), g.weights)
    assert (got - want).norm() <= 1.02 * (g.values[-1] - want).norm()


Shape = tuple[int | str, ...]


ON_PIXELS: list[tuple[str, tuple[int, ...] | None, Shape]] = [
    ("nchw,dc->ndhw", (5, 4), (2, 5, "h", "w")),
    ("nchw,dc->nhwd", (5, 4), (2, "h", "w", 5)),
    ("...chw,c->...hw", (4,), (2, "h", "w")),
    ("nchw,nchw->nchw", None, (2, 4, "h", "w")),
    ("nchw,nchw", None, ()),
    ("nchw,nchw->nc", None, (2, 4)),
    ("nchw->nwhc", (), (2, "w", "h", 4)),
    ("nchw->nc", (), (2, 4)),
    ("nchw", (), (4, "h", 2, "w")),
    ("nchw,ndhw->ncd", None, (2, 4, 4)),
    ("nchw,cd,ce->nhde", (4, 3), (2, "h", 3, 3)),
    ("nchw,ncgw->nhg", None, (2, "h", "h")),
]


ON_TOKENS: list[tuple[str, bool, Shape]] = [
    ("bic,bjc->bij", True, (2, "h*w", "h*w")),
    ("bic,bid->bcd", True, (2, 4, 4)),
    ("bic,dc->bid", False, (2, "h*w", 5)),
]


def einsum(draw: Draw, op: str) -> OneOp:
    """Over pixels, tokens, pixels in the batch, and the two products of an attention."""
    g = OneOp(draw(heights), draw(widths))
    kind = draw(st.sampled_from(["pixels", "tokens", "batch", "attention"]))
    if kind == "pixels":
        equation, weight, shape = draw(st.sampled_from(ON_PIXELS))
        x = image(g)
        others = [g.call("neg.default", x)] if weight is None else [g.param(*weight)] if weight else []
        if equation.count(",") == 2:
            others = [*others, g.param(4, 3)]
        return g.gives(g.call("einsum.default", equation, [x, *others], shape=shape))
    if kind == "batch":
        equation = draw(st.sampled_from(["twc,dc->twd", "t w c, d c -> t d w"]))
        shape = ("2*h", "w", 5) if equation.endswith("twd") else ("2*h", 5, "w")
        return g.gives(g.call("einsum.default", equation, [folded(g), g.param(5, 4)], shape=shape))
    x = tokens(g)
    if kind == "tokens":
        equation, same, shape = draw(st.sampled_from(ON_TOKENS))
        other = g.param(5, 4) if not same else x if draw(st.booleans()) else g.call("neg.default", x)
        return g.gives(g.call("einsum.default", equation, [x, other], shape=shape))
    weights = g.call("einsum.default", "bic,bjc->bij", [x, x], shape=(2, "h*w", "h*w"))
    weights = g.call("softmax.int", weights, -1)
    products: list[tuple[str, Shape]] = [("bij,bjc->bic", (2, "h*w", 4)), ("bij,bjc->bci", (2, 4, "h*w"))]
    equation, shape = draw(st.sampled_from(products))
    return g.gives(g.call("einsum.default", equation, [weights, x], shape=shape))


CASES: dict[str, Case] = {"einsum": einsum}


def diagonal(g: OneOp) -> Ref:
    x = image(g)
    square = g.call("einsum.default", "nchw,ncgw->nhg", [x, x], shape=(2, "h", "h"))
    return g.call("einsum.default", "nhh->nh", [square], shape=(2, "h"))


def test_what_it_does_not_cover_is_refused() -> None:
    refused_and_exact("diagonal", diagonal)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_sum_over_rows_is_added_up_in_a_wider_type(dtype: torch.dtype) -> None:
    g = OneOp(64, 8, dtype)
    x = image(g)
    g.gives(g.call("einsum.default", "nchw,nchw->nc", [x, x], shape=(2, 4)))
    (got,) = execute(schedule(lower(g.graph, g.sizes, CPU), 3), g.inputs(), g.weights)
    want = g.value(x).double().square().sum((2, 3))
    assert got.dtype == dtype
    assert (got.double() - want).norm() / want.norm() < 2 * torch.finfo(dtype).eps


def nearest_code(draw: Draw, op: str) -> OneOp:
    """Of pictures, one or more in turn, in whatever type."""
    dtype = draw(st.sampled_from([torch.float64, torch.float32, torch.bfloat16]))
    g = OneOp(draw(heights), draw(st.integers(2, 4)), dtype)
    n = draw(st.integers(1, 2))
    x = g.call("view.default", g.input(n, "h", "w", 4), [-1, 4], shape=(f"{n}*h*w", 4))
    codes = g.param(9, 4)
    distances = (g.wide(x)[:, None] - g.wide(codes)).square().sum(-1)
    return g.gives(g.fused(op, x, codes, value=distances.argmin(1), shape=(f"{n}*h*w",)), tolerance=0)


CASES |= {"nearest_code": nearest_code}


def test_distances_are_never_all_there() -> None:
    g = OneOp(64, 64)
    x = g.call("view.default", g.input("h", "w", 4), [-1, 4], shape=("h*w", 4))
    g.gives(g.fused("nearest_code", x, g.param(300, 4), value=torch.zeros(4096, dtype=torch.int64), shape=("h*w",)))
    (op,) = (op for op in lower(g.graph, g.sizes, torch.device("cuda")).ops if op.name == "nearest_code")
    assert op.workspace(1) == nearest_code_bytes(64, 4, 300)
    assert op.workspace(64) < 1.1 * 8 * 4096 * 300


@pytest.mark.parametrize(("vectors", "channels", "codes"), [(64, 4, 16384), (500, 8, 16384), (10, 64, 20000)])
def test_what_it_takes_is_what_plans_count(vectors: int, channels: int, codes: int) -> None:
    """By PyTorch's own notes of what it allocates."""
    x, table = torch.randn(vectors, channels), torch.randn(codes, channels)
    nearest_codes(None, x, table)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        nearest_codes(None, x, table)
    events = [e for e in profiled.profiler.kineto_results.events() if e.name() == "[memory]"]  # type: ignore[union-attr]
    taken = max(accumulate(e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())))
    assert taken <= nearest_code_bytes(vectors, channels, codes) + 8 * vectors <= 1.15 * taken


def test_codes_with_rows_are_refused() -> None:
    g = OneOp(6, 5)
    x = g.call("view.default", g.input("h", "w", 4), [-1, 4], shape=("h*w", 4))
    g.gives(g.fused("nearest_code", x, x, value=torch.arange(30), shape=("h*w",)))
    with pytest.raises(UnsupportedOp, match="none in its codes"):
        lower(g.graph, g.sizes, torch.device("cpu"))


@pytest.mark.parametrize(("h", "w"), [(1, 1), (1, 5), (4, 3), (6, 7)])
def test_one_weight_upsamples_and_convolves(h: int, w: int) -> None:
    random = torch.Generator().manual_seed(3)
    x, weight, bias = (torch.randn(*s, generator=random).double() for s in ((2, 3, h, w), (5, 3, 3, 3), (5,)))
    want = F.conv2d(F.interpolate(x, scale_factor=2.0, mode="nearest"), weight, bias, padding=1)
    found = F.conv_transpose2d(x, subpixel_weight(None, weight), bias, 2, 1)
    torch.testing.assert_close(found, want, rtol=0, atol=1e-13)


def test_sums_of_taps_are_rounded_once() -> None:
    weight = torch.randn(4, 6, 3, 3, generator=torch.Generator().manual_seed(4)).bfloat16()
    taps = subpixel_weight(None, weight)
    assert taps.dtype == torch.bfloat16
    assert torch.equal(taps, subpixel_weight(None, weight.double()).bfloat16())


def test_summed_taps_lie_as_the_weight_does() -> None:
    plain = torch.randn(4, 6, 3, 3, generator=torch.Generator().manual_seed(2))
    last = plain.contiguous(memory_format=torch.channels_last)
    of_plain, of_last = subpixel_weight(None, plain), subpixel_weight(None, last)
    assert torch.equal(of_plain, of_last)
    assert of_plain.is_contiguous()
    assert of_last.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("made", [subpixel_weight, enlarging_taps])
@pytest.mark.parametrize("shape", [(700, 300, 3, 3), (3, 1200, 3, 3), (1, 1, 3, 3)], ids=str)
def test_kernels_are_summed_in_little_memory(made: Any, shape: tuple[int, ...]) -> None:
    """No plan counts what the steps take: of 1024 channels it was 196 MiB beside the result."""
    weight = torch.randn(shape).bfloat16()
    sizes: list[int] = []

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            sizes.append(result.untyped_storage().nbytes() if isinstance(result, Tensor) else 0)
            return result

    with Sizes():
        found = made(None, weight)
    result = weight.shape[0] * weight.shape[1] * 16 * 2
    assert all(n <= 3 << 20 or n == result for n in sizes)
    ones = torch.ones(weight.shape[1], 1, 2, 2, dtype=torch.float64)
    expected = F.conv_transpose2d(weight.double().flip(2, 3), ones, groups=weight.shape[1])
    expected = expected.transpose(0, 1) if made is subpixel_weight else expected
    torch.testing.assert_close(made(None, weight.double()), expected, rtol=0, atol=1e-13)
    assert ((found - expected).norm() / expected.norm()).item() < 2**-8


@pytest.mark.parametrize("op", CASES)
@given(data=st.data())
def test_rows_of_what_was_asked_for_equal_the_op_on_everything(op: str, data: Any) -> None:
    check(CASES[op], op, data)
