"""Rules of norms and of fused operations."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given
from hypothesis import strategies as st
from one_op import (
    CPU,
    LAYOUTS,
    Case,
    Draw,
    OneOp,
    any_layout,
    check,
    clip,
    clip_tokens,
    execute_strips,
    folded,
    heights,
    image,
    tokens,
    widths,
)
from refusals import refused_and_exact
from small_models import Residual, graph_of
from torch import Tensor

from tvae.kernels import Kernels
from tvae.kernels.prebuild import rehearsal
from tvae.kernels.workspace import attention_bytes
from tvae.pipeline.engine.ir.graph import Ref
from tvae.pipeline.engine.ir.sizes import Size, evaluate
from tvae.pipeline.engine.lower import lower
from tvae.pipeline.engine.rules import attention, norm
from tvae.pipeline.errors import UnsupportedOp

DTYPES = {torch.float64: 1e-9, torch.float32: 2e-5, torch.bfloat16: 2e-2}


"""Types of the values, and the tolerance of one rounding or two of a value of a few units."""


MAPS = ("image", "clip", "tokens", "clip_tokens", "folded")


def started(draw: Draw) -> tuple[OneOp, float]:
    """A graph at some size and type, and the tolerance of the type."""
    dtype = draw(st.sampled_from([torch.float64, *DTYPES]))
    return OneOp(draw(heights), draw(st.integers(2, 4)), dtype), DTYPES[dtype]


def a_map(draw: Draw, g: OneOp, channels: int = 4) -> Ref:
    """[N, C, *]: pictures, clips, their tokens, or rows merged into the batch."""
    name, n = draw(st.sampled_from(MAPS)), draw(st.integers(1, 2))
    if name in ("image", "clip"):
        return LAYOUTS[name](g, channels, n)
    x = {"tokens": tokens, "clip_tokens": clip_tokens, "folded": folded}[name](g, channels, n)
    batch, length, _ = g.shape_of(x)
    return g.call("transpose.int", x, 1, 2, shape=(batch, channels, length))


def maybe_param(draw: Draw, g: OneOp, *shape: int) -> Ref | None:
    return g.param(*shape) if draw(st.booleans()) else None


def per_channel(value: Tensor | None, ndim: int) -> Tensor | float:
    return 0.0 if value is None else value.flatten().view(-1, *[1] * (ndim - 2))


def normed(draw: Draw, g: OneOp, x: Ref) -> Ref:
    """``tvae.norm_act`` of a value, its oracle GroupNorm of the shifted value, then SiLU."""
    channels = g.value(x).shape[1]
    groups, eps = draw(st.sampled_from([1, 2, channels])), draw(st.sampled_from([1e-2, 1.0]))
    weight, bias, offset = (maybe_param(draw, g, channels) for _ in range(3))
    act = draw(st.sampled_from([None, "silu"]))
    wide = g.wide(x) + per_channel(g.wide(offset), g.value(x).ndim)
    y = F.group_norm(wide, groups, g.wide(weight), g.wide(bias), eps)
    y = F.silu(y) if act else y
    return g.fused("norm_act", x, groups, weight, bias, eps, offset, act, value=y)


def convolved(g: OneOp, x: Ref) -> Ref:
    """A 3x3 convolution that keeps the shape: fresh memory, of one reader."""
    channels, dims = g.value(x).shape[1], g.value(x).ndim - 2
    weight = g.param(channels, channels, *[3] * dims)
    return g.call(f"conv{dims}d.default", x, weight, None, [1] * dims, [1] * dims)


def norm_act(draw: Draw, op: str) -> OneOp:
    """Of an input, which is read, of a value that is stored and gives statistics on its way, and of one of both."""
    g, tolerance = started(draw)
    x = a_map(draw, g)
    how = draw(st.sampled_from(["given", "made", "made and read"]))
    if how != "given":
        x = g.call("mul.Tensor", x, g.call("tanh.default", x))
    y = normed(draw, g, x)
    outputs = [y, x, normed(draw, g, x)] if how == "made and read" else [y]
    return g.gives(*outputs, tolerance=tolerance, channels_last=draw(st.booleans()))


def residual(draw: Draw, op: str) -> OneOp:
    """Over a convolution's result or not, with every mixture of operands, and with a normalisation behind."""
    g, tolerance = started(draw)
    shape = draw(st.sampled_from(["map", "image", "clip"]))
    x = a_map(draw, g) if shape == "map" else {"image": image, "clip": clip}[shape](g, 4, draw(st.integers(1, 2)))
    over = shape != "map" and draw(st.booleans())
    other = draw(st.sampled_from([None, x, g.call("tanh.default", x)]))
    first = convolved(g, x) if over else g.call("sin.default", x)
    if over and draw(st.booleans()):
        other = first
    bias = maybe_param(draw, g, 4)
    y = g.wide(first) + (0 if other is None else g.wide(other)) + per_channel(g.wide(bias), g.value(x).ndim)
    made = g.fused("residual", first, other, bias, value=y)
    outputs = [made, first] if draw(st.booleans()) else [made]
    outputs += [normed(draw, g, made)] if draw(st.booleans()) else []
    return g.gives(*outputs, tolerance=2 * tolerance, channels_last=draw(st.booleans()))


def rms_norm_act(draw: Draw, op: str) -> OneOp:
    """Both forms, over every layout, with weights that have dimensions of one or not."""
    g, tolerance = started(draw)
    x = a_map(draw, g)
    ones = [1] * draw(st.integers(0, g.value(x).ndim - 2))
    weight, bias = (maybe_param(draw, g, 4, *ones) for _ in range(2))
    form, act = draw(st.sampled_from(["normalize", "rms"])), draw(st.sampled_from([None, "silu"]))
    eps, wide = draw(st.sampled_from([1e-2, 1.0])), g.wide(x)
    offset = maybe_param(draw, g, 4)
    wide = wide + per_channel(g.wide(offset), wide.ndim)
    if form == "normalize":
        size = wide.square().sum(1, keepdim=True).sqrt().clamp_min(eps) / 2  # the root of four channels
    else:
        size = (wide.square().mean(1, keepdim=True) + eps).sqrt()
    scale = 1.0 if weight is None else per_channel(g.wide(weight), wide.ndim)
    y = wide / size * scale + per_channel(g.wide(bias), wide.ndim)
    y = F.silu(y) if act else y
    before, shape = [], g.shape_of(x)
    if len(shape) == 5 and draw(st.booleans()):  # frames of another value come first
        first = draw(st.integers(1, g.value(x).shape[2]))
        before = [g.call("slice.Tensor", x, 2, 0, first, shape=[*shape[:2], first, *shape[3:]])]
        y = torch.cat([g.wide(before[0]), y], 2)
        shape = [*shape[:2], y.shape[2], *shape[3:]]
    made = g.fused("rms_norm_act", x, weight, bias, eps, form, act, offset, *before, value=y, shape=shape)
    return g.gives(made, tolerance=tolerance, channels_last=draw(st.booleans()))


def wide_attention(draw: Draw, op: str) -> OneOp:
    """Tokens of pictures, of clips with and without a mask over frames, keys of something else, rows in the batch."""
    g, tolerance = started(draw)
    kind = draw(st.sampled_from(["picture", "clip", "frames", "rows are frames", "others", "batch"]))
    make = {"clip": clip_tokens, "frames": clip_tokens, "batch": folded}.get(kind, tokens)
    frames: int | Size = {"frames": 2, "rows are frames": Size("h")}.get(kind, 1)
    count, n = evaluate(frames, g.sizes), draw(st.integers(1, 2))

    def head(x: Ref) -> Ref:
        batch, length, channels = g.shape_of(x)
        return g.call("unsqueeze.default", x, 1, shape=(batch, 1, length, channels))

    q = head(make(g, 4, n))
    k, v = (g.param(n, 1, 5, 4) if kind == "others" else head(make(g, 4, n)) for _ in range(2))
    frame = torch.arange(g.value(q).shape[2]) // (g.value(q).shape[2] // count)
    mask = None if count == 1 else frame[:, None] >= frame[None, :]
    scale = draw(st.sampled_from([0.5, 0.3]))
    logits = g.wide(q) @ g.wide(k).transpose(2, 3) * scale
    logits = logits if mask is None else logits.masked_fill(~mask, -torch.inf)
    made = g.fused("wide_attention", q, k, v, scale, frames, value=logits.softmax(3) @ g.wide(v))
    return g.gives(made, tolerance=tolerance)


def norm_pad(draw: Draw, op: str) -> OneOp:
    """Pictures and clips with borders on any side, zeros or the nearest rows and columns."""
    g, tolerance = started(draw)
    x = draw(st.sampled_from([image, clip]))(g, 4, draw(st.integers(1, 2)))
    groups, eps, act = draw(st.sampled_from([1, 2, 4])), 0.5, draw(st.sampled_from([None, "silu"]))
    weight, bias, offset = (maybe_param(draw, g, 4) for _ in range(3))
    wide = g.wide(x) + per_channel(g.wide(offset), g.value(x).ndim)
    y = F.group_norm(wide, groups, g.wide(weight), g.wide(bias), eps)
    amounts = [draw(st.integers(0, 2)) for _ in range(2 * (wide.ndim - 2))]
    mode = draw(st.sampled_from(["constant", "replicate"]))
    value = F.pad(F.silu(y) if act else y, amounts, mode)
    shape = g.shape_of(x)
    for n in range(wide.ndim - 2):
        shape = [*shape[: -1 - n], f"{shape[-1 - n]} + {sum(amounts[2 * n : 2 * n + 2])}", *shape[len(shape) - n :]]
    made = g.fused("norm_pad", x, groups, weight, bias, eps, offset, act, amounts, mode, value=value, shape=shape)
    return g.gives(made, tolerance=tolerance, channels_last=draw(st.booleans()))


def size_kept(draw: Draw) -> Callable[[int], tuple[Any, ...]]:
    """Shapes of pictures by their channels; or of pictures that are the rows themselves, as frames can be."""
    n, rows_are_pictures = draw(st.integers(1, 2)), draw(st.booleans())
    return lambda channels: ("h", channels, 6, "w") if rows_are_pictures else (n, channels, "h", "w")


def conv_add(draw: Draw, op: str) -> OneOp:
    """A convolution that keeps the size with something added, and a normalisation behind."""
    g, tolerance = started(draw)
    shape, inner, kernel = size_kept(draw), draw(st.integers(1, 5)), draw(st.sampled_from([3, 5]))
    x, weight, bias = g.input(*shape(inner)), g.param(4, inner, kernel, kernel), maybe_param(draw, g, 4)
    other = g.call("tanh.default", g.input(*shape(4)))
    y = F.conv2d(g.wide(x), g.wide(weight), g.wide(bias), padding=kernel // 2) + g.wide(other)
    made = g.fused("conv_add", x, weight, other, bias, value=y, shape=shape(4))
    outputs = [made, normed(draw, g, made)] if draw(st.booleans()) else [made]
    return g.gives(*outputs, tolerance=8 * tolerance, channels_last=draw(st.booleans()))


def down_conv(draw: Draw, op: str) -> OneOp:
    """A picture of half the size, odd sides too, with a normalisation behind."""
    g, tolerance = started(draw)
    shape, inner = size_kept(draw), draw(st.integers(1, 5))
    x, weight, bias = g.input(*shape(inner)), g.param(4, inner, 3, 3), maybe_param(draw, g, 4)
    assume(min(g.value(x).shape[2:]) > 3)
    y = F.conv2d(F.pad(g.wide(x), (0, 1, 0, 1)), g.wide(weight), g.wide(bias), stride=2)
    n, _, h, w = shape(4)
    smaller = n, 4, 3 if h == 6 else f"{h}//2", f"{w}//2"
    made = g.fused("down_conv", x, weight, bias, value=y, shape=smaller)
    outputs = [made, normed(draw, g, made)] if draw(st.booleans()) else [made]
    return g.gives(*outputs, tolerance=8 * tolerance, channels_last=draw(st.booleans()))


def enlarge_conv(draw: Draw, op: str) -> OneOp:
    """A picture enlarged twice, with a normalisation behind."""
    g, tolerance = started(draw)
    shape, inner = size_kept(draw), draw(st.integers(1, 5))
    x, taps, bias = g.input(*shape(inner)), g.param(4, inner, 4, 4), maybe_param(draw, g, 4)
    y = F.conv_transpose2d(g.wide(x), g.wide(taps).transpose(0, 1), g.wide(bias), stride=2, padding=1)
    n, _, h, w = shape(4)
    larger = n, 4, 12 if h == 6 else f"2*{h}", f"2*{w}"
    made = g.fused("enlarge_conv", x, taps, bias, value=y, shape=larger)
    outputs = [made, normed(draw, g, made)] if draw(st.booleans()) else [made]
    return g.gives(*outputs, tolerance=8 * tolerance, channels_last=draw(st.booleans()))


def conv_from_few(draw: Draw, op: str) -> OneOp:
    """A picture that keeps its size, with a normalisation behind."""
    g, tolerance = started(draw)
    shape, inner, kernel = size_kept(draw), draw(st.integers(1, 3)), draw(st.sampled_from([1, 3]))
    x, weight, bias = g.input(*shape(inner)), g.param(4, inner, kernel, kernel), maybe_param(draw, g, 4)
    y = F.conv2d(g.wide(x), g.wide(weight), g.wide(bias), padding=kernel // 2)
    made = g.fused("conv_from_few", x, weight, bias, value=y, shape=shape(4))
    outputs = [made, normed(draw, g, made)] if draw(st.booleans()) else [made]
    return g.gives(*outputs, tolerance=4 * tolerance, channels_last=draw(st.booleans()))


def conv_to_few(draw: Draw, op: str) -> OneOp:
    """A normalisation and the convolution behind it."""
    g, tolerance = started(draw)
    shape, kernel = size_kept(draw), draw(st.sampled_from([1, 3]))
    x = g.input(*shape(4))
    groups, eps, act = draw(st.sampled_from([1, 2, 4])), 0.5, draw(st.sampled_from([None, "silu"]))
    norm_weight, norm_bias, offset = (maybe_param(draw, g, 4) for _ in range(3))
    weight, bias = g.param(2, 4, kernel, kernel), maybe_param(draw, g, 2)
    wide = g.wide(x) + per_channel(g.wide(offset), 4)
    y = F.group_norm(wide, groups, g.wide(norm_weight), g.wide(norm_bias), eps)
    y = F.conv2d(F.silu(y) if act else y, g.wide(weight), g.wide(bias), padding=kernel // 2)
    norm = x, groups, norm_weight, norm_bias, eps, offset, act
    made = g.fused("conv_to_few", *norm, weight, bias, value=y, shape=shape(2))
    return g.gives(made, tolerance=8 * tolerance, channels_last=draw(st.booleans()))


CASES: dict[str, Case] = {
    f.__name__: f
    for f in (
        *(norm_act, residual, rms_norm_act, wide_attention),
        *(norm_pad, conv_add, down_conv, enlarge_conv, conv_from_few, conv_to_few),
    )
}


@pytest.mark.parametrize("masked", [False, True])
def test_attention_works_in_the_memory_of_all_queries_of_a_row(masked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of every frame, or under a mask of one frame after the other."""
    monkeypatch.setattr(attention, "attends", lambda *_: True)  # so few keys, too
    g = OneOp(6, 5, torch.bfloat16)
    q, k, v = (g.call("unsqueeze.default", clip_tokens(g, 4, 1), 1, shape=(1, 1, "2*h*w", 4)) for _ in range(3))
    g.gives(g.fused("wide_attention", q, k, v, 0.5, 2 if masked else 1, value=g.value(v)))
    program = lower(g.graph, g.sizes, torch.device("cuda"), Kernels({"default": "triton"}))
    (op,) = (op for op in program.ops if op.name == "wide_attention")
    frames = 1 if masked else 2
    assert op.workspace(3) == attention_bytes(3 * frames * g.sizes["w"], 2 * g.sizes["h"] * g.sizes["w"], 4)


def test_frames_made_apart_and_then_put_after_others_take_memory_twice() -> None:
    g = OneOp(6, 5)
    x = g.input(1, 4, 3, "h", "w")
    before = g.call("slice.Tensor", x, 2, 0, 2, shape=(1, 4, 2, "h", "w"))
    value = torch.cat([g.value(before), g.value(x)], 2)
    more = None, None, 1.0, "rms", None, None, before
    g.gives(g.fused("rms_norm_act", x, *more, value=value, shape=(1, 4, 5, "h", "w")))
    (op,) = (op for op in lower(g.graph, g.sizes, torch.device("cpu")).ops if op.name == "rms_norm_act")
    assert op.workspace(3) == 4 * 3 * 3 * 5 * g.value(x).element_size()


def rows_in_channels(g: OneOp) -> Ref:
    """[N, h, 4, w]."""
    return g.call("transpose.int", image(g), 1, 2, shape=(2, "h", 4, "w"))


def norm_of_rows_in_channels(g: OneOp) -> Ref:
    x = rows_in_channels(g)
    return g.fused("norm_act", x, 1, None, None, 1.0, None, None, value=F.group_norm(g.wide(x), 1, eps=1.0))


def pixel_norm_of_rows_in_channels(g: OneOp) -> Ref:
    x = rows_in_channels(g)
    size = (g.wide(x).square().mean(1, keepdim=True) + 1.0).sqrt()
    return g.fused("rms_norm_act", x, None, None, 1.0, "rms", None, value=g.wide(x) / size)


def pixels_of_rows_in_channels(g: OneOp) -> Ref:
    x = rows_in_channels(g)
    return g.fused("shuffle_up", x, (1, 1), 6, None, value=g.wide(x), shape=(2, "h", 4, "w"))


def pixels_and_a_sum_with_other_rows(g: OneOp) -> Ref:
    """What is added has the rows of two frames one after the other."""
    x, frames = image(g), g.input(2, 4, 2, "h", "2*w")
    other = g.call("view.default", frames, [2, 4, -1, Size("2*w")], shape=(2, 4, "2*h", "2*w"))
    y = g.wide(x).repeat_interleave(2, 2).repeat_interleave(2, 3) + g.wide(other)
    return g.fused("shuffle_up", x, (2, 2), 4, other, value=y, shape=(2, 4, "2*h", "2*w"))


def frames_that_the_rows_do_not_know(g: OneOp) -> Ref:
    """Queries of the halves of two pictures, as if they were frames."""
    x = g.call("unsqueeze.default", clip_tokens(g), 1, shape=(2, 1, "2*h*w", 4))
    frame = torch.arange(g.value(x).shape[2]) // (g.value(x).shape[2] // 4)
    mask = frame[:, None] >= frame[None, :]
    y = F.scaled_dot_product_attention(*[g.wide(x)] * 3, attn_mask=mask, scale=0.5)
    return g.fused("wide_attention", x, x, x, 0.5, 4, value=y)


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (norm_of_rows_in_channels, "merged with the channels"),
        (pixel_norm_of_rows_in_channels, "merged with the channels"),
        (pixels_of_rows_in_channels, "rows in the channels"),
        (pixels_and_a_sum_with_other_rows, "rows elsewhere"),
        (frames_that_the_rows_do_not_know, "other frames"),
    ],
    ids=lambda p: getattr(p, "__name__", ""),
)
def test_it_is_refused_by_name_and_exact_when_run_whole(build: Callable[[OneOp], Ref], why: str) -> None:
    g = OneOp(6, 3)
    g.gives(build(g))
    with pytest.raises(UnsupportedOp, match=why) as caught:
        lower(g.graph, g.sizes, CPU)
    assert caught.value.module == "block.0"
    for strip in (1, 4, 6):
        execute_strips(lower(g.graph, g.sizes, CPU, allow_whole=True), g, strip)


def trailing_norm(draw: Draw, op: str) -> OneOp:
    """Over the features of tokens."""
    g = OneOp(draw(heights), draw(widths))
    x = LAYOUTS[draw(st.sampled_from(["tokens", "clip_tokens", "folded"]))](g)
    affine = [g.param(4), g.param(4)][: 2 if op == "layer_norm" else 1] if draw(st.booleans()) else [None, None]
    eps = [1e-5] if draw(st.booleans()) or op == "rms_norm" else []
    return g.gives(g.call(f"{op}.default", x, [4], *affine[: 2 if op == "layer_norm" else 1], *eps))


def over_rows(draw: Draw, op: str) -> OneOp:
    """Over as many last dimensions as reach the rows, and more, far from zero too."""
    dtype = draw(st.sampled_from([torch.float64, torch.float32]))
    g = OneOp(draw(heights), draw(widths), dtype)
    x = LAYOUTS[draw(any_layout)](g)
    if draw(st.booleans()):
        x = g.call("add.Tensor", x, 100.0)
    shape = g.shape_of(x)
    over = [Size(n) if isinstance(n, str) else n for n in shape[draw(st.integers(0, len(shape) - 1)) :]]
    eps = draw(st.sampled_from([[], [1e-3], [1e-5]]))
    affine = [None] * (2 if op == "layer_norm" else 1)
    tolerance = 1e-9 if dtype == torch.float64 else 2e-4
    return g.gives(g.call(f"{op}.default", x, over, *(affine if eps else []), *eps), tolerance=tolerance)


def either(draw: Draw, op: str) -> OneOp:
    """Over the features, or over the rows as well."""
    return draw(st.sampled_from([trailing_norm, over_rows]))(draw, op)


CASES |= dict.fromkeys(["layer_norm", "rms_norm"], either)


def test_weights_with_rows_are_refused() -> None:
    def build(g: OneOp) -> Ref:
        x, weight = image(g), g.input("h", "w")
        return g.call("layer_norm.default", x, [Size("h"), Size("w")], weight)

    refused_and_exact("its weights have rows", build)


@pytest.mark.parametrize("why", ["few", "many", "a rehearsal"])
def test_blocks_are_merged_where_they_are_many_and_in_rehearsals(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rehearsal has two strips of few rows: what it does not ask for is built while a large picture waits."""
    graph = graph_of(Residual)
    sizes = graph.bind([(2, 3, 12, 6)])
    assert sizes is not None
    (reduction,) = (op.reduction for op in lower(graph, sizes, CPU).ops if op.reduction is not None)
    assert reduction.take is not None
    first, second = torch.rand(2, 2, 1, 3, 8, dtype=torch.float64).add(1).unbind(0)
    if why == "many":
        monkeypatch.setattr(norm, "_MOST_BYTES", first.nbytes)
    with rehearsal() if why == "a rehearsal" else nullcontext():
        found = reduction.take(reduction.take(None, first), second)
    assert len(found) == (2 if why == "few" else 1)
    count, mean, _ = torch.cat(found, 1).unbind(2)
    counts, means = torch.stack([first[:, 0, 0], second[:, 0, 0]]), torch.stack([first[:, 0, 1], second[:, 0, 1]])
    assert torch.allclose(count.sum(1), counts.sum(0))
    assert torch.allclose((count * mean).sum(1), (counts * means).sum(0))


@pytest.mark.parametrize("op", CASES)
@given(data=st.data())
def test_rows_of_what_was_asked_for_equal_the_op_on_everything(op: str, data: Any) -> None:
    check(CASES[op], op, data)
