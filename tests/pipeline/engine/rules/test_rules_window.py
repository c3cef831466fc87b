"""Rules of windows: convolutions, padding, pooling, unfolding."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given
from hypothesis import strategies as st
from one_op import CPU, Case, Draw, OneOp, Shape, check, clip_tokens, folded, heights, tokens
from refusals import Build, refused_and_exact
from small_functions import captured
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from tvae.kernels.columns import has_columns
from tvae.pipeline.engine.ir.fused_ops import even_zeros
from tvae.pipeline.engine.ir.graph import Ref
from tvae.pipeline.engine.ir.layout import memory_format
from tvae.pipeline.engine.ir.program import Op
from tvae.pipeline.engine.ir.sizes import Size
from tvae.pipeline.engine.lower import lower
from tvae.pipeline.engine.passes import simplify
from tvae.pipeline.engine.plan.schedule import schedule
from tvae.pipeline.engine.rules.window import _of_pairs
from tvae.pipeline.engine.run.execute import execute

few = st.integers(1, 2)


def _placed(rows_at: int, rows: str | int, others: list[int]) -> list[str | int]:
    """Spatial sizes with the rows in place ``rows_at`` among the others."""
    return [*others[:rows_at], rows, *others[rows_at:]]


def convolution(draw: Draw, op: str) -> OneOp:
    """Any kernel, stride, dilation, padding up to the kernel's reach, and groups."""
    dims = int(op[4])
    if dims == 1 and draw(st.booleans()):  # rows in the batch
        g = OneOp(draw(st.integers(1, 6)), 4)
        x = g.call("transpose.int", folded(g, 4), 1, 2, shape=("2*h", 4, "w"))
        return g.gives(g.call("conv1d.default", x, g.param(5, 4, 3), None, [1], [1], shape=("2*h", 5, "w")))
    k, s, d = draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(few)
    p = draw(st.integers(0, d * (k - 1)))
    named = draw(st.sampled_from([None, None, "same", "valid"]))
    if named:
        p, s = 0, 1 if named == "same" else s
    at, groups = draw(st.integers(0, dims - 1)), draw(few)
    least = 1 if named == "same" else max(1, d * (k - 1) + 1 - 2 * p)
    g = OneOp(draw(st.integers(least, least + 9)))
    others, kernels = [draw(st.integers(3, 4)) for _ in range(dims - 1)], [draw(few) for _ in range(dims - 1)]
    strides, pads = [draw(few) for _ in others], [draw(st.integers(0, 1)) for _ in others]
    if named:
        pads, strides = [0 for _ in others], [1 for _ in others] if named == "same" else strides
    left = [(n + 2 * q - m) // t + 1 for n, m, t, q in zip(others, kernels, strides, pads, strict=True)]
    x = g.input(2, 4, *_placed(at, "h", others))
    weight = g.param(2 * groups, 4 // groups, *_placed(at, k, kernels))
    bias = g.param(2 * groups) if draw(st.booleans()) else None
    shape = [2, 2 * groups, *_placed(at, f"(h + {2 * p - d * (k - 1) - 1})//{s} + 1", left)]
    if named == "same":
        shape[2:] = _placed(at, "h", others)
    how = named or _placed(at, p, pads)
    stride, dilation = _placed(at, s, strides), _placed(at, d, [1] * (dims - 1))
    target = f"{op}.{'padding' if named else 'default'}"
    return g.gives(g.call(target, x, weight, bias, stride, how, dilation, groups, shape=shape))


def transposed(draw: Draw, op: str) -> OneOp:
    """Any kernel, stride, padding, dilation, output padding; kernels smaller than the stride leave gaps."""
    dims = int(op[-2])
    if dims == 1 and draw(st.booleans()):
        g = OneOp(draw(st.integers(1, 6)), 4)
        x = g.call("transpose.int", folded(g, 4), 1, 2, shape=("2*h", 4, "w"))
        return g.gives(g.call("conv_transpose1d.default", x, g.param(4, 5, 3), None, [1], [1], shape=("2*h", 5, "w")))
    k, s, d, p = draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(few), draw(st.integers(0, 3))
    tail = draw(st.integers(0, max(s, d) - 1))
    at, groups = draw(st.integers(0, dims - 1)), draw(few)
    grown = d * (k - 1) + 1 + tail - 2 * p  # output rows are (h - 1)·s + grown
    least = max(1, -(-(1 - grown) // s) + 1)
    g = OneOp(draw(st.integers(least, least + 5)))
    others, kernels = [draw(few) for _ in range(dims - 1)], [draw(few) for _ in range(dims - 1)]
    strides = [draw(few) for _ in others]
    left = [(n - 1) * t + m for n, m, t in zip(others, kernels, strides, strict=True)]
    x = g.input(2, 4, *_placed(at, "h", others))
    weight = g.param(4, 2, *_placed(at, k, kernels))
    bias = g.param(2 * groups) if draw(st.booleans()) else None
    shape: Shape = [2, 2 * groups, *_placed(at, f"(h - 1)*{s} + {grown}", left)]
    zeros = [0] * (dims - 1)
    args = (_placed(at, s, strides), _placed(at, p, zeros), _placed(at, tail, zeros), groups)
    dilation = _placed(at, d, [1] * (dims - 1))
    return g.gives(g.call(f"{op}.{'default' if dims == 1 else 'input'}", x, weight, bias, *args, dilation, shape=shape))


def pooling(draw: Draw, op: str) -> OneOp:
    """Windows with and without overlap and gaps, with padding, dilation and ceil mode."""
    dims = int(op[-2])
    batch: list[int | str] = [2, 3]
    at = draw(st.integers(-1 if dims > 1 else 0, dims - 1))  # -1: the rows are in the batch
    k, s = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    others = [draw(st.integers(3, 5)) for _ in range(dims - (at >= 0))]
    kernels, pads = [2 for _ in others], [draw(st.integers(0, 1)) for _ in others]
    left = [(n + 2 * q - 2) // 2 + 1 for n, q in zip(others, pads, strict=True)]
    g = OneOp(draw(st.integers(k, k + 9)))
    if at < 0:
        x, shape = g.input("h", 3, *others), ["h", 3, *left]
        kernel, stride, padding = kernels, kernels, pads
    else:
        x = g.input(*batch, *_placed(at, "h", others))
        p, largest = draw(st.integers(0, k // 2)), op.startswith("max")
        gap = draw(st.integers(1, 2)) if largest and g.number("h") + 2 * p > 2 * (k - 1) else 1
        seen, h = (k - 1) * gap + 1, g.number("h")
        up = draw(st.booleans()) and not others
        rows = f"(h + {2 * p - seen + (s - 1) * up})//{s} + 1"
        if up and ((h + 2 * p - seen + s - 1) // s) * s >= h + p:  # no window begins behind the picture
            rows = f"(h + {2 * p - seen + s - 1})//{s}"
        shape = [*batch, *_placed(at, rows, left)]
        kernel, stride, padding = _placed(at, k, kernels), _placed(at, s, kernels), _placed(at, p, pads)
        if s == k and draw(st.booleans()) and not any(padding) and gap == 1 and not up:
            return g.gives(g.call(f"{op}.default", x, kernel, shape=shape))
        if largest:
            more: tuple[Any, ...] = (_placed(at, gap, [1 for _ in others]), up)
        else:
            more = (up, draw(st.booleans()))
        return g.gives(g.call(f"{op}.default", x, kernel, stride, padding, *more, shape=shape))
    more = ([1] * dims, False) if op.startswith("max") else (False, draw(st.booleans()))
    return g.gives(g.call(f"{op}.default", x, kernel, stride, padding, *more, shape=shape))


def adaptive(draw: Draw, op: str) -> OneOp:
    """To a few rows whatever the height, to as many or half as many, with the rows in any place."""
    dims = int(op[-2])
    at = draw(st.integers(-1 if dims > 1 else 0, dims - 1))
    g = OneOp(draw(st.integers(1, 9)))
    others = [draw(st.integers(2, 5)) for _ in range(dims - (at >= 0))]
    left = [draw(st.integers(1, 4)) for _ in others]
    if at < 0:
        x, shape = g.input("h", 3, *others), ["h", 3, *left]
        if op.startswith("adaptive_max"):
            parts = g.call(f"{op}.default", x, left, shape=[shape, shape])
            return g.gives(g.part(parts, 0), g.part(parts, 1), tolerance=0)
        return g.gives(g.call(f"{op}.default", x, left, shape=shape))
    rows, made = draw(st.sampled_from([("h", 1), ("h", 2), ("h", 3), ("h", "h"), ("2*h", "h")]))
    x = g.input(2, 3, *_placed(at, rows, others))
    size = [Size(n) if isinstance(n, str) else n for n in _placed(at, made, left)]
    after = [2, 3, *_placed(at, made, left)]
    if op.startswith("adaptive_max"):
        values = g.part(g.call(f"{op}.default", x, size, shape=[after, after]), 0)
        return g.gives(values, g.call("neg.default", x), tolerance=0)
    made_of_all = g.call(f"{op}.default", x, size, shape=after)
    return g.gives(made_of_all, g.call("neg.default", x))


def padding(draw: Draw, op: str) -> OneOp:
    """Every mode, any amount on either side, negative ones (crops) too, with the rows padded or not."""
    mode = draw(st.sampled_from(["constant", "replicate", "reflect", "circular"])) if op == "pad" else "constant"
    h, w = draw(st.integers(1, 9)), draw(st.integers(2, 4))
    most = {"constant": 7, "replicate": 7, "reflect": h - 1, "circular": h}[mode]
    cut = 0 if mode == "circular" else min(2, h - 1)
    top, bottom = draw(st.integers(-cut, most)), draw(st.integers(-cut, most))
    if h + top + bottom < 1 or draw(st.booleans()):
        top = bottom = min(1, most)
    if draw(st.integers(0, 4)) == 0:
        top = bottom = 0
    left, right = draw(st.integers(-1, 1)), draw(st.integers(0, 1))
    g = OneOp(h, w)
    transposed = draw(st.booleans())  # rows last
    sizes = ["w", "h"] if transposed else ["h", "w"]
    x = g.input(2, 3, *sizes)
    amounts = [top, bottom, left, right] if transposed else [left, right, top, bottom]
    grown = [f"w + {left + right}", f"h + {top + bottom}"]
    shape: list[int | str] = [2, 3, *(grown if transposed else grown[::-1])]
    if mode == "constant" and draw(st.booleans()):
        amounts, shape[1] = [*amounts, 1, 0], 4
    fill = draw(st.sampled_from([[], [1.5]])) if mode == "constant" else []
    if op == "constant_pad_nd":
        return g.gives(g.call("constant_pad_nd.default", x, amounts, *fill, shape=shape), tolerance=0)
    args = (mode, *fill) if fill or mode != "constant" or draw(st.booleans()) else ()
    return g.gives(g.call("pad.default", x, amounts, *args, shape=shape), tolerance=0)


CASES: dict[str, Case] = {
    **dict.fromkeys(["conv1d", "conv2d", "conv3d"], convolution),
    **dict.fromkeys(["conv_transpose1d", "conv_transpose2d", "conv_transpose3d"], transposed),
    **dict.fromkeys([f"{kind}_pool{n}d" for kind in ("avg", "max") for n in (1, 2, 3)], pooling),
    **dict.fromkeys([f"adaptive_{kind}_pool{n}d" for kind in ("avg", "max") for n in (1, 2, 3)], adaptive),
    **dict.fromkeys(["pad", "constant_pad_nd"], padding),
}


def frames_alone(draw: Draw, op: str) -> OneOp:
    """A 3-d convolution of one frame at a time, the channels innermost: pictures in a batch, in the clip's place."""
    g, n, frames = OneOp(draw(st.integers(3, 8))), draw(few), draw(st.integers(1, 3))
    at, step = draw(st.integers(0, 2)), draw(few)  # which of frames, rows and columns is the tiled one
    sizes: list[str | int] = [frames, 5, 4]
    sizes[at] = "h"
    rows = f"(h - 1)//{step} + 1" if at == 1 else 4 // step + 1
    x, stride, padding = g.input(n, 4, *sizes), [1, step, 1], [0, 1, 0]
    shape = [n, 6, sizes[0], rows, sizes[2]]
    weight, bias = g.param(6, 4, 1, 3, 1), g.param(6)
    made = g.call(f"{op}.default", x, weight, bias, stride, padding, [1, 1, 1], 1, shape=shape)
    return g.gives(made, channels_last=True)


@given(data=st.data())
def test_frames_that_do_not_see_one_another(data: Any) -> None:
    check(frames_alone, "conv3d", data)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("frames", [2, 8, 9])
def test_means_of_pairs_of_frames_are_those_of_pooling(dtype: torch.dtype, frames: int) -> None:
    """In the layout of the clip, to the bit where results are of 16 bits."""
    clip = torch.randn(1, 5, frames, 6, 7, dtype=dtype).contiguous(memory_format=torch.channels_last_3d)
    of_pixels = clip.permute(0, 3, 4, 1, 2).reshape(42, 5, frames)
    found, want = _of_pairs(of_pixels), F.avg_pool1d(of_pixels.double(), 2, 2)
    assert found.stride(1) == 1
    assert torch.equal(found, F.avg_pool1d(of_pixels, 2, 2)) or dtype.itemsize > 2
    assert torch.allclose(found.double(), want, rtol=3 * torch.finfo(dtype).eps, atol=2 * torch.finfo(dtype).eps)


def _windows(size: int | str, k: int, d: int, p: int, s: int) -> int | str:
    made = f"({size} + {2 * p - d * (k - 1) - 1})//{s} + 1"
    return made if isinstance(size, str) else int(eval(made))


def _settings(draw: Draw) -> tuple[list[list[int]], int]:
    """(kernel, dilation, padding, stride), rows first; and the fewest rows that hold a window. The padding may be wider
    than the kernel."""
    rows = [draw(st.integers(1, 4)), draw(few), draw(st.integers(0, 5)), draw(st.integers(1, 3))]
    columns = [draw(few), draw(few), draw(st.integers(0, 1)), draw(few)]
    k, d, p, _ = rows
    return [list(pair) for pair in zip(rows, columns, strict=True)], max(1, d * (k - 1) + 1 - 2 * p)


def im2col(draw: Draw, op: str) -> OneOp:
    """Any kernel, dilation, padding and stride, with the rows down, across or in the batch, of one picture or some."""
    settings, least = _settings(draw)
    g, place = OneOp(draw(st.integers(least, least + 9))), draw(st.sampled_from(["down", "across", "batch"]))
    taps = settings[0][0] * settings[0][1]
    if place == "batch":
        made = [_windows(9, *each) for each in zip(*settings, strict=True)]
        x = g.input("h", 3, 9, 9)
        return g.gives(g.call("im2col.default", x, *settings, shape=("h", 3 * taps, made[0] * made[1])), tolerance=0)
    sizes: list[int | str] = ["h", 4]
    if place == "across":
        settings, sizes = [each[::-1] for each in settings], sizes[::-1]
    made = [f"({_windows(n, *each)})" for n, each in zip(sizes, zip(*settings, strict=True), strict=True)]
    batch = draw(st.sampled_from([[2], []]))
    x = g.input(*batch, 3, *sizes)
    return g.gives(
        g.call("im2col.default", x, *settings, shape=(*batch, 3 * taps, f"{made[0]}*{made[1]}")), tolerance=0
    )


def col2im(draw: Draw, op: str) -> OneOp:
    """The same windows, added up."""
    settings, least = _settings(draw)
    g, place = OneOp(draw(st.integers(least, least + 9))), draw(st.sampled_from(["down", "across", "batch"]))
    taps = settings[0][0] * settings[0][1]
    if place == "batch":
        made = [_windows(9, *each) for each in zip(*settings, strict=True)]
        x = g.input("h", 3 * taps, made[0] * made[1])
        return g.gives(g.call("col2im.default", x, [9, 9], *settings, shape=("h", 3, 9, 9)))
    sizes: list[int | str] = ["h", 4]
    if place == "across":
        settings, sizes = [each[::-1] for each in settings], sizes[::-1]
    made = [f"({_windows(n, *each)})" for n, each in zip(sizes, zip(*settings, strict=True), strict=True)]
    columns = g.call("im2col.default", g.input(2, 3, *sizes), *settings, shape=(2, 3 * taps, f"{made[0]}*{made[1]}"))
    size = [Size(n) if isinstance(n, str) else n for n in sizes]
    return g.gives(g.call("col2im.default", columns, size, *settings, shape=(2, 3, *sizes)))


CASES |= {"im2col": im2col, "col2im": col2im}


def of_frames(g: OneOp) -> Ref:
    """Rows of a clip, one frame under another."""
    x = g.call("view.default", g.input(2, 4, 2, "h", "w"), [2, 4, -1, Size("w")], shape=(2, 4, "2*h", "w"))
    return g.call("im2col.default", x, [2, 2], [1, 1], [0, 0], [1, 1], shape=(2, 16, "(2*h - 1)*(w - 1)"))


def of_channels(g: OneOp) -> Ref:
    x = g.call("transpose.int", g.input(2, 4, "h", 3), 1, 2, shape=(2, "h", 4, 3))
    return g.call("im2col.default", x, [1, 1], [1, 1], [0, 0], [1, 1], shape=(2, "h", 12))


def of_tokens(g: OneOp) -> Ref:
    """The rows are in the channels."""
    x = tokens(g, 7)
    return g.call("col2im.default", x, [7, 1], [1, 1], [1, 1], [0, 0], [1, 1], shape=(2, "h*w", 7, 1))


def elsewhere(g: OneOp) -> Ref:
    """As many columns as windows, but a window's rows are those of two frames."""
    x = g.call("transpose.int", clip_tokens(g), 1, 2, shape=(2, 4, "2*h*w"))
    return g.call(
        "col2im.default", x, [Size("2*h"), Size("w")], [1, 1], [1, 1], [0, 0], [1, 1], shape=(2, 4, "2*h", "w")
    )


@pytest.mark.parametrize(
    ("why", "build"),
    [("merged", of_frames), ("in the channels", of_channels), ("in the channels", of_tokens), ("elsewhere", elsewhere)],
    ids=["frames", "channels", "tokens", "other windows"],
)
def test_what_they_do_not_cover_is_refused(why: str, build: Build) -> None:
    refused_and_exact(why, build)


TOLERANCES = {torch.float64: 1e-8, torch.float32: 2e-4, torch.bfloat16: 0.2}


def uneven_conv(draw: Draw, op: str) -> OneOp:
    """Steps, gaps and groups, and other zeros before a dimension than after it."""
    dtype = draw(st.sampled_from([*TOLERANCES]))
    g = OneOp(draw(heights), draw(st.integers(2, 4)), dtype)
    dims = draw(st.sampled_from([1, 2, 3]))
    spatial = {1: ["h"], 2: ["h", "w"], 3: [draw(st.integers(3, 5)), "h", "w"]}[dims]
    g.sizes["w"] += 3
    each = [st.integers(*bounds) for bounds in ((1, 3), (1, 3), (1, 2))]
    kernel, stride, dilation = ([draw(one) for _ in spatial] for one in each)
    if dtype == torch.bfloat16:  # with both, PyTorch 2.13's own on CPUs with AMX reads memory that nobody wrote
        dilation = [1 if step > 1 else gap for step, gap in zip(stride, dilation, strict=True)]
    zeros = [(draw(st.integers(0, 2)), draw(st.integers(0, 2))) for _ in spatial]
    before, after = [b for b, _ in zeros], [a for _, a in zeros]
    reach = [(k - 1) * d for k, d in zip(kernel, dilation, strict=True)]
    assume(all(z <= r for z, r in zip(even_zeros(before, after, stride), reach, strict=True)))
    assume(all(g.number(n) + b + a > r for n, b, a, r in zip(spatial, before, after, reach, strict=True)))
    groups = draw(st.sampled_from([1, 2]))
    x, weight, bias = (
        g.input(draw(st.integers(1, 2)), 4, *spatial),
        g.param(4, 4 // groups, *kernel),
        draw(st.sampled_from([None, g.param(4)])),
    )
    conv, amounts = (F.conv1d, F.conv2d, F.conv3d)[dims - 1], [n for pair in reversed(zeros) for n in pair]
    y = conv(F.pad(g.wide(x), amounts), g.wide(weight), g.wide(bias), stride, 0, dilation, groups)
    sizes = [
        f"({n} + {b + a - r - 1})//{s} + 1" for n, b, a, r, s in zip(spatial, before, after, reach, stride, strict=True)
    ]
    args = x, weight, bias, stride, before, after, dilation, groups
    made = g.fused("uneven_conv", *args, value=y, shape=(y.shape[0], 4, *sizes))
    return g.gives(made, tolerance=TOLERANCES[dtype], channels_last=draw(st.booleans()))


CASES |= {"uneven_conv": uneven_conv}


@pytest.mark.parametrize("last", [False, True])
def test_what_is_left_lies_in_one_piece(last: bool) -> None:
    """A convolution behind it would copy it in every strip."""
    g = OneOp(9, 8)
    x, weight = g.input(2, 4, "h", "w"), g.param(4, 4, 3, 3)
    y = F.conv2d(F.pad(g.value(x), (0, 1, 0, 1)), g.value(weight), stride=2)
    args = x, weight, None, [2, 2], [0, 0], [1, 1], [1, 1], 1
    g.gives(g.fused("uneven_conv", *args, value=y, shape=(2, 4, "(h - 2)//2 + 1", "(w - 2)//2 + 1")), tolerance=1e-9)
    layout = memory_format(4, last)
    program = lower(g.graph, g.sizes, CPU, channels_last=last)
    given = [v.contiguous(memory_format=layout) for v in (g.value(x), *g.weights.values())]
    weights = dict(zip(g.weights, given[1:], strict=True))
    (found,) = execute(schedule(program, 9), given[:1], weights, channels_last=last)
    assert found is not None
    assert found.is_contiguous(memory_format=layout)
    torch.testing.assert_close(found, y)


@pytest.mark.parametrize("height", [8, 9])
def test_what_is_dropped_is_counted(height: int) -> None:
    """The convolution's own result is there beside the part of it that is kept."""
    g = OneOp(height, 40, torch.float32)
    x, weight = g.input(1, 4, "h", "w"), g.param(4, 4, 3, 3)
    y = F.conv2d(F.pad(g.value(x), (0, 1, 0, 1)), g.value(weight), stride=2)
    args = x, weight, None, [2, 2], [0, 0], [1, 1], [1, 1], 1
    g.gives(g.fused("uneven_conv", *args, value=y, shape=(1, 4, "(h - 2)//2 + 1", "(w - 2)//2 + 1")), tolerance=1e-4)
    op = lower(g.graph, g.sizes, CPU).ops[-1]
    whole = F.conv2d(g.value(x), g.value(weight), stride=2, padding=2)
    assert whole.nbytes <= op.workspace(y.shape[2]) <= 1.3 * whole.nbytes


MOST = 18 / 16 + 0.01


"""Times: at a border the convolution_columns pads both sides of a strip, and two rows of the result are left out."""


def picture(m: nn.Module, x: Tensor) -> Tensor:
    return F.conv2d(x.half(), m.conv.weight.half(), None, 1, 1)


def clip(m: nn.Module, x: Tensor) -> Tensor:
    taps = m.conv.weight.half().unsqueeze(2).expand(-1, -1, 3, -1, -1)
    return F.conv3d(x.half().unsqueeze(2).expand(-1, -1, 5, -1, -1), taps, None, 1, [0, 1, 1])


def single(m: nn.Module, x: Tensor) -> Tensor:
    return m.conv(x)


def convolution_columns(fn: Any) -> Op:
    graph = simplify(captured(fn)[0])
    sizes = graph.bind([(1, 3, 64, 48)])
    assert sizes is not None
    return next(op for op in lower(graph, sizes, CPU).ops if op.name in ("conv2d", "conv3d"))


@pytest.mark.long
@pytest.mark.skipif(not has_columns(CPU, torch.float16, 2), reason="this processor computes with 16 bits")
@pytest.mark.parametrize(("fn", "shape"), [(picture, (1, 3, 18, 48)), (clip, (1, 3, 5, 18, 48))])
def test_sixteen_rows_of_16_bits(fn: Any, shape: tuple[int, ...]) -> None:
    op, x = convolution_columns(fn), torch.randn(shape).half()
    weight = torch.randn(op.shape[1], 3, *[3] * (len(shape) - 2)).half()
    function = F.conv2d if len(shape) == 4 else F.conv3d
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        function(x, weight, None, 1, [*[0] * (len(shape) - 3), 1])
    slow = [e for e in seen.events() if "slow_conv" in e.name]
    columns = max(c.cpu_memory_usage for e in slow for c in e.cpu_children)
    assert columns > 4 * x.nbytes
    assert columns + x.nbytes * 16 // 18 <= op.workspace(16) <= MOST * (columns + x.nbytes)


@pytest.mark.skipif(has_columns(CPU, torch.float32, 2), reason="without oneDNN it has them, too")
def test_float32_has_none() -> None:
    assert convolution_columns(single).workspace(16) == 0


@pytest.mark.parametrize("op", CASES)
@given(data=st.data())
def test_rows_of_what_was_asked_for_equal_the_op_on_everything(op: str, data: Any) -> None:
    check(CASES[op], op, data)
