"""Rules of changes of resolution: nearest neighbours, interpolation, pixel shuffles."""

from __future__ import annotations

from fractions import Fraction
from math import prod
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from one_op import CPU, Case, Draw, OneOp, check, clip_tokens, execute_strips, heights, image
from refusals import Build, refused_and_exact
from torch import Tensor

from tvae.pipeline.engine.ir.graph import Ref
from tvae.pipeline.engine.ir.sizes import Size
from tvae.pipeline.engine.lower import lower
from tvae.pipeline.engine.plan.schedule import schedule
from tvae.pipeline.engine.run.execute import execute
from tvae.pipeline.errors import UnsupportedOp


def nearest(draw: Draw, op: str) -> OneOp:
    """Every factor in every dimension, by size or by scale, down as well as up, with the rows in any place."""
    dims = int(op[-2])
    at = draw(st.integers(-1 if dims > 1 else 0, dims - 1))  # -1: the rows are in the batch
    up = draw(st.integers(1, 4))
    down = draw(st.sampled_from([1, 1, 2, 3])) if up == 1 else 1
    g = OneOp(draw(heights))
    rows = f"{down}*h" if down > 1 else "h"
    others = [draw(st.integers(1, 3)) for _ in range(dims - (at >= 0))]
    factors = [draw(st.integers(1, 4)) for _ in others]
    before: list[int | str] = [*others]
    after: list[int | str] = [n * f for n, f in zip(others, factors, strict=True)]
    scales = [float(f) for f in factors]
    if at >= 0:
        before.insert(at, rows)
        after.insert(at, f"{up}*h")
        scales.insert(at, up / down)
    batch: list[int | str] = [rows if at < 0 else 2, 3]
    x = g.input(*batch, *before)
    size, shape = [g.number(n) for n in after], [*batch, *after]
    how = draw(st.sampled_from(["size", "scale", "scales"])) if down != 3 else "size"  # 1/3 is not a float
    if how == "scales":
        return g.gives(g.call(f"{op}.default", x, size, *scales, shape=shape), tolerance=0)
    args = (size, None) if how == "size" else (None, scales)
    return g.gives(g.call(f"{op}.vec", x, *args, shape=shape), tolerance=0)


def shuffle(draw: Draw, op: str) -> OneOp:
    """Either way, with the rows in either spatial dimension or in the batch."""
    g, factor = OneOp(draw(heights)), draw(st.integers(1, 3))
    other, out = (2, f"2*{factor}") if op == "pixel_shuffle" else (2 * factor, "2")
    channels = 3 * factor**2 if op == "pixel_shuffle" else 3
    made = 3 if op == "pixel_shuffle" else 3 * factor**2
    rows, after = ("h", f"h*{factor}") if op == "pixel_shuffle" else (f"{factor}*h", "h")
    place = draw(st.sampled_from(["height", "width", "batch"]))
    if place == "batch":
        x, shape = g.input("h", channels, other, other), ["h", made, g.number(out), g.number(out)]
    elif place == "height":
        x, shape = g.input(2, channels, rows, other), [2, made, after, g.number(out)]
    else:
        x, shape = g.input(2, channels, other, rows), [2, made, g.number(out), after]
    return g.gives(g.call(f"{op}.default", x, factor, shape=shape), tolerance=0)


_NEAREST = ("upsample_nearest", "_upsample_nearest_exact")


CASES: dict[str, Case] = {
    **dict.fromkeys(
        [f"{name}{n}d" for name in ("upsample_nearest", "_upsample_nearest_exact") for n in (1, 2, 3)], nearest
    ),
    **dict.fromkeys(["pixel_shuffle", "pixel_unshuffle"], shuffle),
}


RATIOS = [Fraction(n, 4) for n in (2, 3, 4, 5, 6, 8, 9, 16)]


def _resized(draw: Draw, op: str, dims: int, *aligned: bool) -> OneOp:
    """By size or by scale, up and down, with the rows in any place."""
    at = draw(st.integers(-1 if dims > 1 else 0, dims - 1))  # -1: the rows are in the batch
    g = OneOp(draw(st.integers(2, 9)))
    before: list[int | str] = [draw(st.integers(2, 3)) for _ in range(dims - (at >= 0))]
    if at >= 0:
        before.insert(at, "h")
    ratios = [draw(st.sampled_from(RATIOS)) for _ in range(dims)]
    after = [
        f"(h*{r.numerator})//{r.denominator}" if n == "h" else int(n) * r.numerator // r.denominator
        for n, r in zip(before, ratios, strict=True)
    ]
    batch: list[int | str] = ["h" if at < 0 else 2, 3]
    x, shape = g.input(*batch, *before), [*batch, *after]
    same = any(g.number(n) == g.number(m) and r != 1 for n, m, r in zip(before, after, ratios, strict=True))
    if not same and draw(st.booleans()):
        args: tuple[Any, ...] = (None, *aligned, [float(r) for r in ratios])
    else:
        args = ([Size(n) if isinstance(n, str) else n for n in after], *aligned, None)
    return g.gives(g.call(f"{op}.vec", x, *args, shape=shape))


def antialiased(draw: Draw, op: str) -> OneOp:
    """By size or by scale, up and down, with the rows down or in the batch. (Of a single column PyTorch's own numbers
    are wrong.)"""
    g, aligned, scaled = OneOp(draw(st.integers(2, 12))), draw(st.booleans()), draw(st.booleans())
    down, across = draw(st.sampled_from(RATIOS)), draw(st.sampled_from([Fraction(1), Fraction(1, 2), Fraction(2)]))
    scales = [float(down), float(across)]
    if draw(st.booleans()):
        sizes = [7 * down.numerator // down.denominator, 4 * across.numerator // across.denominator]
        how = (None, aligned, scales) if scaled else (sizes, aligned, None)
        return g.gives(g.call(f"{op}.vec", g.input("h", 3, 7, 4), *how, shape=("h", 3, *sizes)))
    size, width = f"(h*{down.numerator})//{down.denominator}", 4 * across.numerator // across.denominator
    scaled = scaled and (down == 1 or g.number(size) != g.number("h"))
    how = (None, aligned, scales) if scaled else ([Size(size), width], aligned, None)
    return g.gives(g.call(f"{op}.vec", g.input(2, 3, "h", 4), *how, shape=(2, 3, size, width)))


def smooth(draw: Draw, op: str) -> OneOp:
    return _resized(draw, op, int(op[-2]), draw(st.booleans()))


CASES |= {
    **dict.fromkeys(["upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d"], smooth),
    **dict.fromkeys(["_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"], antialiased),
}


@pytest.mark.parametrize(
    "op", [f"{name}{n}d" for name in ("upsample_nearest", "_upsample_nearest_exact") for n in (1, 2)]
)
@given(data=st.data())
def test_nearest_neighbours_at_any_ratio(op: str, data: Any) -> None:
    g = _resized(data.draw, op, int(op[-2]))
    g.tolerance = 0
    check(lambda _draw, _op: g, op, data)


@pytest.mark.parametrize("op", ["upsample_nearest2d", "upsample_bilinear2d", "_upsample_bicubic2d_aa"])
@given(rows=st.integers(1, 12), size=st.integers(1, 6), aligned=st.booleans())
def test_rows_are_made_of_a_value_without_rows(op: str, rows: int, size: int, aligned: bool) -> None:
    """What pooling to a few pixels gives, as large as the picture again."""
    g = OneOp(rows, 4)
    few = g.call("adaptive_avg_pool2d.default", image(g), [size, 2], shape=(2, 4, size, 2))
    args = [Size("h"), Size("w")], *([] if "nearest" in op else [aligned]), None
    g.gives(g.call(f"{op}.vec", few, *args, shape=(2, 4, "h", "w")))
    for strip in (1, 3):
        execute_strips(lower(g.graph, g.sizes, CPU), g, strip)


@given(rows=st.integers(50, 400), made=st.integers(1, 500), exact=st.booleans())
def test_the_neighbour_is_pytorchs_own(rows: int, made: int, exact: bool) -> None:
    """Which neighbour is nearer hangs on a rounding in float32."""
    g = OneOp(rows, 1)
    x = image(g, 1, 1)
    name = "_upsample_nearest_exact2d" if exact else "upsample_nearest2d"
    size = f"h - h + {made}"
    g.gives(g.call(f"{name}.vec", x, [Size(size), 1], None, shape=(1, 1, size, 1)))
    (got,) = execute(schedule(lower(g.graph, g.sizes, CPU), 37), g.inputs(), g.weights)
    assert torch.equal(got, g.values[-1])


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("aligned", [True, False])
def test_in_bfloat16_it_is_rounded_once(mode: str, aligned: bool) -> None:
    g = OneOp(40, 12, torch.bfloat16)
    x = image(g)
    args = ([Size("h*7//4"), 17], aligned, None)
    g.gives(g.call(f"upsample_{mode}2d.vec", x, *args, shape=(2, 4, "h*7//4", 17)))
    (got,) = execute(schedule(lower(g.graph, g.sizes, CPU), 3), g.inputs(), g.weights)
    want = F.interpolate(g.value(x).double(), size=(70, 17), mode=mode, align_corners=aligned)
    assert (got - want).norm() <= 1.02 * (g.values[-1] - want).norm()


def of_tokens(g: OneOp) -> Ref:
    x = g.call("transpose.int", clip_tokens(g), 1, 2, shape=(2, 4, "2*h*w"))
    return g.call("upsample_linear1d.vec", x, None, False, [2.0], shape=(2, 4, "4*h*w"))


def by_scales(g: OneOp) -> Ref:
    args = ([Size("2*h"), 3], False, 2.0, 1.0)
    return g.call("upsample_bilinear2d.default", image(g), *args, shape=(2, 4, "2*h", 3))


def antialiased_across(g: OneOp) -> Ref:
    args = ([3, Size("2*h")], False, None)
    return g.call("_upsample_bilinear2d_aa.vec", g.input(2, 4, 5, "h"), *args, shape=(2, 4, 3, "2*h"))


@pytest.mark.parametrize(
    ("why", "build"),
    [("merged", of_tokens), ("scales", by_scales), ("across", antialiased_across)],
    ids=["tokens", "scales", "across"],
)
def test_what_it_does_not_cover_is_refused(why: str, build: Build) -> None:
    refused_and_exact(why, build)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("op", ["_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"])
def test_a_single_column_has_no_numbers_of_its_own(op: str, whole: bool) -> None:
    """PyTorch's depend on the layout in memory there, so running it whole would not help. As many rows are fine."""
    g = OneOp(7, 3)
    g.gives(g.call(f"{op}.vec", image(g), [Size("2*h"), 1], False, None, shape=(2, 4, "2*h", 1)))
    with pytest.raises(UnsupportedOp, match="single column") as caught:
        lower(g.graph, g.sizes, CPU, allow_whole=whole)
    assert "allow_whole" not in str(caught.value)
    same = OneOp(7, 3)
    same.gives(same.call(f"{op}.vec", image(same), [Size("h"), 1], False, None, shape=(2, 4, "h", 1)))
    execute_strips(lower(same.graph, same.sizes, CPU), same, 2)


DTYPES = {torch.float64: 1e-9, torch.float32: 2e-5, torch.bfloat16: 2e-2}


def spread(x: Tensor, factors: tuple[int, ...], channels: int) -> Tensor:
    """By the model's own operations."""
    parts = x.repeat_interleave(channels * prod(factors) // x.shape[1], 1).unflatten(1, (channels, *factors))
    order = [d for i in range(len(factors)) for d in (2 + len(factors) + i, 2 + i)]
    size = [n * f for n, f in zip(x.shape[2:], factors, strict=True)]
    return parts.permute(0, 1, *order).reshape(x.shape[0], channels, *size)


def shuffle_up(draw: Draw, op: str) -> OneOp:
    """Pictures and clips, rows along the height, along time or in the batch, with a sum or without."""
    dtype = draw(st.sampled_from([*DTYPES]))
    g = OneOp(draw(heights), draw(st.integers(1, 4)), dtype)
    factors, shape = draw(st.sampled_from(LAYOUTS))
    x = g.input(*shape)
    channels = draw(st.sampled_from([2, 4, 8]))
    larger: list[Any] = [shape[0], channels]
    for size, factor in zip(shape[2:], factors, strict=True):
        larger.append(size * factor if isinstance(size, int) else f"{factor}*{size}")
    y, other = spread(g.wide(x), factors, channels), None
    if draw(st.booleans()):
        other = g.call("tanh.default", g.input(*larger))
        y = y + g.wide(other)
    made: Ref = g.fused("shuffle_up", x, factors, channels, other, value=y, shape=larger)
    return g.gives(made, tolerance=DTYPES[dtype], channels_last=draw(st.booleans()))


LAYOUTS: list[tuple[tuple[int, ...], tuple[Any, ...]]] = [
    ((2, 2), (2, 4, "h", "w")),
    ((3, 1), (1, 6, "h", "w")),
    ((1, 2, 2), (2, 8, 2, "h", "w")),
    ((2, 2, 2), (1, 8, 3, "h", "w")),
    ((2, 1, 2), (1, 4, "h", 3, "w")),
    ((2, 2), ("h", 4, 3, "w")),
]


"""Factors, and the shape of what is spread."""


CASES |= {"shuffle_up": shuffle_up}


@pytest.mark.parametrize("op", CASES)
@given(data=st.data())
def test_rows_of_what_was_asked_for_equal_the_op_on_everything(op: str, data: Any) -> None:
    check(CASES[op], op, data)
