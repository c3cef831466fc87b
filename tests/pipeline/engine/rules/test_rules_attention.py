"""Rules of attention: its rows, few keys in float32, and the memory it takes."""

from __future__ import annotations

import copy
import statistics
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from live_bytes import LiveBytes
from one_op import CPU, Case, Draw, OneOp, Shape, check, clip_tokens, folded, heights, tokens, widths
from over_time import OverTime
from slow_but import slow_but
from small_functions import Fn, captured
from torch import Tensor, arange, nn

from tvae.kernels import Kernels
from tvae.kernels.workspace import attention_bytes
from tvae.pipeline import TiledVAE
from tvae.pipeline.engine.ir.graph import Ref
from tvae.pipeline.engine.ir.program import Op
from tvae.pipeline.engine.ir.sizes import Size
from tvae.pipeline.engine.lower import lower
from tvae.pipeline.engine.passes import simplify
from tvae.pipeline.engine.passes.attention import use_wide_attention
from tvae.pipeline.engine.plan.schedule import schedule
from tvae.pipeline.engine.plan.strip_cost import Step, strips_alike
from tvae.pipeline.engine.rules import attention as attention_rules
from tvae.pipeline.engine.run.execute import execute


def _heads(g: OneOp, x: Ref) -> Ref:
    """[N, L, 4] -> [N, 2, L, 2]."""
    length = g.shape_of(x)[1]
    split = g.call("view.default", x, [2, -1, 2, 2], shape=(2, length, 2, 2))
    return g.call("transpose.int", split, 1, 2, shape=(2, 2, length, 2))


def _frame_mask(g: OneOp) -> Ref:
    """[2hw, 2hw] of 0 and -inf: a token sees its own frame and those before, made as models make it."""
    frames = g.param(value=arange(2))
    size = "2*h*w"
    index = g.call("repeat_interleave.self_int", frames, Size("h*w"), shape=(size,))
    grids = g.call("meshgrid.indexing", [index, index], indexing="ij", shape=[(size, size)] * 2)
    seen = g.call("le.Tensor", g.part(grids, 1), g.part(grids, 0), shape=(size, size))
    nothing, zero = g.param(value=g.draw_values([]) * 0 - float("inf")), g.param(value=g.draw_values([]) * 0)
    return g.call("where.self", seen, zero, nothing, shape=(size, size))


def attention(draw: Draw, op: str) -> OneOp:
    """Heads or none, tokens of images and clips, masks of several forms, rows in the batch, a scale."""
    g = OneOp(draw(heights), draw(widths))
    kind = draw(st.sampled_from(["plain", "heads", "mask", "border mask", "batch", "cross", "causal", "distance"]))
    target, kwargs = "scaled_dot_product_attention.default", draw(st.sampled_from([{}, {"scale": 0.3}]))
    if kind == "batch":
        q, k, v = folded(g), folded(g), folded(g)
        return g.gives(g.call(target, q, k, v, **kwargs))
    make = draw(st.sampled_from([tokens, clip_tokens]))
    if kind == "mask":
        q, k, v = (_heads(g, clip_tokens(g)) for _ in range(3))
        mask = _frame_mask(g)
        if draw(st.booleans()):
            return g.gives(g.call(target, q, k, v, attn_mask=mask, **kwargs))
        return g.gives(g.call(target, q, k, v, mask, 0.0, False, **kwargs))
    if kind == "border mask":  # one row of mask for all queries, tiled along nothing
        q, k, v = (tokens(g) for _ in range(3))
        mask = g.param(2, 1, 1)
        return g.gives(g.call(target, q, k, v, mask, **kwargs))
    if kind == "causal":
        q = make(g) if draw(st.booleans()) else _heads(g, make(g))
        k = g.call("neg.default", q)
        if draw(st.booleans()):
            return g.gives(g.call(target, q, k, q, None, 0.0, True, **kwargs))
        return g.gives(g.call(target, q, k, q, is_causal=True, **kwargs))
    if kind == "distance":  # a bias made of the positions of queries and keys
        q = tokens(g)
        at = g.call("arange.default", Size("h*w"), dtype=g.dtype, shape=("h*w",))
        down = g.call("unsqueeze.default", at, 1, shape=("h*w", 1))
        across = g.call("unsqueeze.default", at, 0, shape=(1, "h*w"))
        apart = g.call("sub.Tensor", down, across, shape=("h*w", "h*w"))
        bias = g.call("mul.Tensor", g.call("abs.default", apart), -0.1)
        if draw(st.booleans()):
            bias = g.call("triu.default", g.call("full_like.default", bias, float("-inf")), 1)
        return g.gives(g.call(target, q, q, g.call("neg.default", q), bias, **kwargs))
    if kind == "cross":
        q, k, v = make(g), g.param(2, 5, 4), g.param(2, 5, 3)
        return g.gives(g.call(target, q, k, v, shape=[*g.shape_of(q)[:2], 3], **kwargs))
    if kind == "heads":
        q, k, v = (_heads(g, make(g)) for _ in range(3))
    else:
        q = make(g)
        k, v = (q, q) if draw(st.booleans()) else (make(g), make(g))
    return g.gives(g.call(target, q, k, v, **kwargs))


def product(draw: Draw, op: str) -> OneOp:
    """Rows in the batch, in the result's rows or columns, under the sum, and on both sides."""
    g = OneOp(draw(heights), draw(widths))
    make, length = draw(st.sampled_from([(tokens, "h*w"), (clip_tokens, "2*h*w")]))
    if op == "mm":
        make, length = (lambda g: g.call("reshape.default", tokens(g), [-1, 4], shape=("2*h*w", 4))), "2*h*w"
    lead = [] if op == "mm" else [2]
    last = len(lead)

    def turned(x: Ref) -> Ref:
        return g.call("transpose.int", x, -2, -1, shape=[*lead, 4, length])

    kind = draw(st.sampled_from(["mix", "left", "keys", "values", "turned values", "contract", "batch"]))
    x = make(g)
    shape: Shape
    if kind == "mix" or (kind == "batch" and op == "mm"):
        args, shape = (x, g.param(*lead, 4, 5)), [*lead, length, 5]
    elif kind == "left":
        args, shape = (g.param(*lead, 5, 4), turned(x)), [*lead, 5, length]
    elif kind == "keys":
        args, shape = (x, turned(make(g))), [*lead, length, length]
    elif kind == "values":
        weights = g.call("matmul.default", x, turned(make(g)), shape=[*lead, length, length])
        weights = g.call("softmax.int", weights, -1)
        args, shape = (weights, make(g)), [*lead, length, 4]
    elif kind == "turned values":
        weights = g.call("matmul.default", x, turned(make(g)), shape=[*lead, length, length])
        weights = g.call("transpose.int", weights, -2, -1)
        args, shape = (turned(make(g)), weights), [*lead, 4, length]
    elif kind == "contract":
        args, shape = (turned(x), make(g)), [*lead, 4, 4]
    else:
        y = folded(g)
        right = g.param(4, 5) if op == "matmul" else g.call("transpose.int", folded(g), 1, 2, shape=("2*h", 4, "w"))
        args, shape = (y, right), ["2*h", "w", 5 if op == "matmul" else "w"]
    assert last == len(shape) - 2
    return g.gives(g.call(f"{op}.default", *args, shape=shape))


def baddbmm(draw: Draw, op: str) -> OneOp:
    """Scores of attention, with and without another value, of whole and of tiled keys, and in the batch."""
    g = OneOp(draw(heights), draw(widths))
    target, factors = "baddbmm.default", {"beta": draw(st.sampled_from([0, 0.5])), "alpha": 0.3}
    kind = draw(st.sampled_from(["keys", "weight", "batch"]))
    if kind == "batch":
        x = folded(g)
        y = g.call("transpose.int", x, 1, 2, shape=("2*h", 4, "w"))
        beside = g.call("bmm.default", x, y, shape=("2*h", "w", "w"))
        return g.gives(g.call(target, beside, x, y, **factors))
    x = tokens(g)
    if kind == "weight":
        return g.gives(g.call(target, g.param(2, 1, 4), x, g.param(2, 4, 4), shape=x, **factors))
    y = g.call("transpose.int", x, 1, 2, shape=(2, 4, "h*w"))
    size = [2, Size("h*w"), Size("h*w")]
    beside = g.call("zeros.default", size, dtype=g.dtype, shape=(2, "h*w", "h*w"))
    return g.gives(g.call(target, beside, x, y, **factors))


CASES: dict[str, Case] = {
    "scaled_dot_product_attention": attention,
    "baddbmm": baddbmm,
    **dict.fromkeys(["matmul", "bmm", "mm"], product),
}


def by_rows(draw: Draw, op: str) -> OneOp:
    """Every row attends for itself, to what comes before or under a bias for all rows or for each."""
    g = OneOp(draw(heights), draw(widths))
    q, k, v = folded(g), folded(g), folded(g)
    kind, kwargs = draw(st.sampled_from(["plain", "causal", "one bias", "biases"])), {"scale": 0.3}
    if kind == "plain":
        return g.gives(g.call(f"{op}.default", q, k, v, **kwargs))
    if kind == "causal":
        return g.gives(g.call(f"{op}.default", q, k, v, None, 0.0, True, **kwargs))
    bias = g.param(1, 1) if kind == "one bias" else folded(g, 1)
    return g.gives(g.call(f"{op}.default", q, k, v, bias, **kwargs))


@given(data=st.data(), most=st.integers(1, 7))
def test_attention_of_more_samples_than_one_call_takes(data: Any, most: int) -> None:
    with mock.patch.object(attention_rules, "MOST_SAMPLES", most):
        check(by_rows, "scaled_dot_product_attention", data)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_sum_over_strips_is_rounded_once(dtype: torch.dtype) -> None:
    """Many strips of a lower type: as near to float64 as one product of everything."""
    g = OneOp(200, 1, dtype)
    k, v = tokens(g, 16, 1), tokens(g, 16, 1)
    turned = g.call("transpose.int", k, 1, 2, shape=(1, 16, "h*w"))
    g.gives(g.call("matmul.default", turned, v, shape=(1, 16, 16)))
    want = g.value(k).double().transpose(1, 2) @ g.value(v).double()
    plan = schedule(lower(g.graph, g.sizes, CPU), 1)
    (got,) = execute(plan, [g.values[i] for i in g.graph.inputs], g.weights)
    assert got.dtype == dtype
    assert (got - want).norm() <= 1.02 * (want.to(dtype) - want).norm()


@pytest.mark.parametrize("rows", [1, 2, 7])
def test_tokens_of_a_map_that_stays_one_row_when_the_picture_grows(rows: int) -> None:
    """Twice one row, downsampled, is one row again: sizes are compared further apart."""
    g = OneOp(rows, 3)
    low = "(h - 1)//2 + 1"
    small = g.call(
        "conv2d.default", g.input(2, 4, "h", 3), g.param(4, 4, 3, 1), None, [2, 1], [1, 0], shape=(2, 4, low, 3)
    )
    padded = g.call("pad.default", small, [0, 0, 1, 4], "constant", 1.5, shape=(2, 4, f"{low} + 5", 3))
    flat = g.call("view.default", padded, [2, 4, -1], shape=(2, 4, f"({low} + 5)*3"))
    x = g.call("transpose.int", flat, 1, 2, shape=(2, f"({low} + 5)*3", 4))
    g.gives(g.call("scaled_dot_product_attention.default", x, x, x))
    program = lower(g.graph, g.sizes, CPU)
    (out,) = execute(schedule(program, 1), g.inputs(), g.weights)
    torch.testing.assert_close(out, g.values[g.graph.outputs[0]], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("mask", [None, (1024, 1024), (2, 1024, 1024), (2, 1, 1024)])
def test_operands_without_heads_hold_no_weights(mask: tuple[int, ...] | None) -> None:
    """PyTorch's kernels for them alone would hold a weight for every pair of tokens."""
    q, k, v = (torch.randn(2, 1024, 8) for _ in range(3))
    bias = None if mask is None else torch.randn(mask)
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, bias)
    with LiveBytes([q, k, v, *([] if bias is None else [bias])]) as live:
        found = attention_rules._attended((q, k, v), bias)
    assert (found - wanted).abs().max() < 1e-5
    assert live.peak < 1024 * 1024 * 4


@pytest.mark.long
@pytest.mark.parametrize("in_rows", [True, False])
@pytest.mark.parametrize("dtype", slow_but([torch.bfloat16], [torch.bfloat16, torch.float16]), ids=str)
@pytest.mark.parametrize("keys", slow_but([2, 3, 17, 40], [2, 3, 17, 40, 256]))
@torch.no_grad()
def test_the_models_own_error(keys: int, dtype: torch.dtype, in_rows: bool) -> None:
    ratios = []
    for seed in range(4):
        torch.manual_seed(seed)
        model, x = OverTime(in_rows).eval().to(dtype), torch.randn(1, 3, keys, 10, 24).to(dtype)
        exact = copy.deepcopy(model).double().encode(x.double())
        errors = [(y.double() - exact).norm() for y in (TiledVAE(model, "cpu", strip=3).encode(x), model.encode(x))]
        ratios.append(float(errors[0] / errors[1]))
    assert statistics.mean(ratios) <= 1.01, ratios


class OverPixels(nn.Module):
    """Each pixel attends to all, or to those before it."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.into, self.out, self.causal = nn.Conv2d(3, 48, 1), nn.Conv2d(16, 4, 1), causal

    def encode(self, x: Tensor) -> Tensor:
        q, k, v = self.into(x).flatten(2).transpose(1, 2).unsqueeze(1).chunk(3, -1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(y.squeeze(1).transpose(1, 2).reshape(x.shape[0], 16, *x.shape[-2:]))

    def decode(self, z: Tensor) -> Tensor:
        return z


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@torch.no_grad()
def test_of_small_pictures_too(dtype: torch.dtype, causal: bool) -> None:
    ratios = []
    for seed in range(6):
        torch.manual_seed(seed)
        model, x = OverPixels(causal).eval().to(dtype), torch.randn(40, 3, 6, 4).to(dtype)
        exact = copy.deepcopy(model).double().encode(x.double())
        errors = [(y.double() - exact).norm() for y in (TiledVAE(model, "cpu", strip=2).encode(x), model.encode(x))]
        ratios.append(float(errors[0] / errors[1]))
    assert statistics.mean(ratios) <= 1.01, ratios


@given(
    samples=st.integers(1, 9),
    heads=st.integers(1, 9),
    queries=st.integers(1, 5),
    keys=st.integers(1, 16),
    masked=st.sampled_from([None, "each", "all"]),
    most=st.integers(1, 2000),
)
def test_as_many_at_a_time_as_are_widened(
    samples: int, heads: int, queries: int, keys: int, masked: str | None, most: int
) -> None:
    """No call takes more than was said, but for one place; the numbers do not depend on it."""
    random = torch.Generator().manual_seed(1)

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random).bfloat16()

    q, k, v = noise(samples, heads, queries, 4), noise(samples, heads, keys, 4), noise(samples, heads, keys, 6)
    bias = None if masked is None else noise(samples if masked == "each" else 1, heads, queries, keys)
    sizes, plain = list[int](), F.scaled_dot_product_attention

    def counted(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, **more: object) -> Tensor:
        y = plain(q, k, v, bias)
        assert {t.dtype for t in (q, k, v, y)} == {torch.float32}
        sizes.append(sum(t.nbytes for t in (q, k, v, y)) + y.nbytes // 2)
        return y

    with (
        mock.patch.object(attention_rules, "_WIDENED", most),
        mock.patch.object(attention_rules.functional, plain.__name__, counted),
    ):
        got = attention_rules._by_samples((q, k, v), bias)
    assert max(sizes) <= max(most, attention_rules._widened_bytes(q, k, v) // max(samples, heads))
    want = plain(q.float(), k.float(), v.float(), None if bias is None else bias.float()).bfloat16()
    torch.testing.assert_close(got, want, rtol=0.01, atol=1e-6)


CUDA = torch.device("cuda", 0)


def steps_of(fn: Fn, name: str, rows: int, *, last: bool, level: str = "native") -> list[tuple[Op, Step]]:
    """All steps of an operation in strips of so many rows of 64."""
    graph = use_wide_attention(simplify(captured(fn)[0]))
    sizes = graph.bind([(1, 3, 64, 48)])
    assert sizes is not None
    program = lower(graph, sizes, CUDA, Kernels({"default": level}), channels_last=last)
    plan = schedule(program, rows)
    found = [s for segment in plan.segments for strip in strips_alike(program, segment, ()) for s in strip.steps]
    return [(step.op, step) for step in found if step.op.name == name]


def convolved(m: nn.Module, x: Tensor) -> Tensor:
    return m.conv(x)


def normalised(m: nn.Module, x: Tensor) -> Tensor:
    h = m.conv(x)
    return F.silu(F.group_norm(h, 1))


@pytest.mark.parametrize(("fn", "name"), [(convolved, "conv2d"), (normalised, "norm_act")])
@pytest.mark.parametrize("last", [False, True])
def test_rows_out_of_a_buffer_are_copied_first(fn: Fn, name: str, last: bool) -> None:
    """Of one image with the channels innermost they lie in one piece."""
    for rows in 64, 8:
        found = steps_of(fn, name, rows, last=last)
        assert found
        for op, step in found:
            copied = step.workspace - op.workspace(step.rows)
            assert op.packs == (None if last else op.inputs[0])
            assert (copied >= step.rows * 3 * 48 * 4) if rows == 8 and not last else copied == 0


def attended(heads: int, width: int) -> Fn:
    def fn(m: nn.Module, x: Tensor) -> Tensor:
        """Rows and columns of pixels attend among their frames, as they do in Cosmos."""
        tokens = m.conv(x).to(torch.bfloat16)[:, :1].permute(2, 3, 0, 1).flatten(0, 1)
        q = tokens.unsqueeze(1).expand(-1, heads, -1, width)
        return F.scaled_dot_product_attention(q, q + 1, q * 2).transpose(0, 2)

    return fn


@pytest.mark.parametrize(("width", "each"), [(128, 0), (129, 4), (512, 4)])
def test_wide_heads_are_added_up_in_float32(width: int, each: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Operands of two heads may not lie in rows: they are copied."""
    monkeypatch.setattr(attention_rules, "_FEW_KEYS", 0)
    found = steps_of(attended(2, width), "scaled_dot_product_attention", 8, last=True)
    assert found
    for op, step in found:
        assert op.workspace(step.rows) == step.rows * op.row_bytes * (each / 2 + 3)


def test_few_keys_are_computed_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operands and result, and the result in 16 bits; not much more than so much at a time."""
    for most in 1 << 30, 1000:
        monkeypatch.setattr(attention_rules, "_WIDENED", most)
        found = steps_of(attended(2, 512), "scaled_dot_product_attention", 8, last=True)
        assert found
        for op, step in found:
            result = step.rows * op.row_bytes
            assert op.workspace(step.rows) == (9 * result if most > 1000 else 9 * result / step.rows / op.axis.inner)


def crossed(keys: int) -> Fn:
    def fn(m: nn.Module, x: Tensor) -> Tensor:
        """Every pixel attends to a few tokens."""
        tokens = m.conv(x).to(torch.bfloat16).flatten(2).transpose(1, 2).unsqueeze(1)
        few = torch.ones(1, 1, keys, 3, dtype=torch.bfloat16, device=x.device)
        return F.scaled_dot_product_attention(tokens, few, few * 2).squeeze(1)

    return fn


@pytest.mark.parametrize("keys", [4, 256])
def test_queries_are_widened_by_rows(keys: int) -> None:
    """However many there are: a strip of them, beside all keys and values."""
    found = steps_of(crossed(keys), "scaled_dot_product_attention", 8, last=False)
    assert found
    for op, step in found:
        result = step.rows * op.row_bytes
        assert op.workspace(step.rows) == 2 * keys * 3 * 4 + 5 * result


def of_convolutions(width: int, dtype: torch.dtype) -> Fn:
    def fn(m: nn.Module, x: Tensor) -> Tensor:
        """One head, whose features are a convolution's channels."""
        h = m.conv(x)[:, :1].expand(-1, width, -1, -1).to(dtype) * 1
        q, k, v = (y.flatten(2).transpose(1, 2).unsqueeze(1) for y in (h, h + 1, h * 2))
        return F.scaled_dot_product_attention(q, k, v).squeeze(1)

    return fn


@pytest.mark.parametrize(("width", "name"), [(64, "scaled_dot_product_attention"), (512, "wide_attention")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("last", [False, True])
def test_operands_that_lie_outside_rows_are_copied(width: int, name: str, dtype: torch.dtype, last: bool) -> None:
    """All keys and values, and the strip's queries; wide heads of 16 bits are added up in float32 as well."""
    found = steps_of(of_convolutions(width, dtype), name, 8, last=last)
    assert found
    for op, step in found:
        queries, tokens = step.rows * op.row_bytes, 64 * 48 * width * dtype.itemsize
        summed = 2 * queries if dtype == torch.bfloat16 and width == 512 else 0
        assert op.workspace(step.rows) == summed + (0 if last else queries + 2 * tokens)


@pytest.mark.parametrize(("last", "copies"), [(False, 3), (True, 0)])
@pytest.mark.parametrize(("width", "name"), [(64, "scaled_dot_product_attention"), (512, "wide_attention")])
def test_copies_where_every_row_attends_for_itself(last: bool, copies: int, width: int, name: str) -> None:
    def fn(m: nn.Module, x: Tensor) -> Tensor:
        tokens = m.conv(x)[:, :1].permute(2, 3, 0, 1).flatten(0, 1).unsqueeze(1)
        q = tokens.expand(-1, 1, -1, width) * 1
        return F.scaled_dot_product_attention(q, q + 1, q * 2).transpose(0, 2)

    found = steps_of(fn, name, 8, last=last)
    assert found
    for op, step in found:
        assert op.workspace(step.rows) == copies * step.rows * op.row_bytes


@pytest.mark.parametrize(
    ("width", "dtype", "fused"),
    [
        (512, torch.bfloat16, True),
        (288, torch.float16, False),
        (2048, torch.bfloat16, False),
        (512, torch.float32, False),
    ],
    ids=str,
)
def test_weights_count_where_a_kernel_of_ours_attends(width: int, dtype: torch.dtype, fused: bool) -> None:
    """64x48 keys: it takes 384 to 1024 channels of 16 bits."""
    found = steps_of(of_convolutions(width, dtype), "wide_attention", 8, last=True, level="triton")
    assert found
    for op, step in found:
        ours, theirs = attention_bytes(8 * 48, 64 * 48, width), 384 * width * (4 if dtype.itemsize == 2 else 0)
        assert op.workspace(step.rows) == (max(ours, theirs) if fused else theirs)


@pytest.mark.parametrize("op", CASES)
@given(data=st.data())
def test_rows_of_what_was_asked_for_equal_the_op_on_everything(op: str, data: Any) -> None:
    check(CASES[op], op, data)
