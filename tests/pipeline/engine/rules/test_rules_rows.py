"""Rows made of constants, operands in another form, and sizes that grow with the rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from one_op import (
    CPU,
    LAYOUTS,
    Case,
    Draw,
    OneOp,
    any_layout,
    check,
    execute_strips,
    heights,
    image,
    tokens,
    whole_values,
    widths,
)
from row_reader import same
from torch import Tensor, nn

from tvae.pipeline import TiledVAE
from tvae.pipeline.engine.ir.graph import DEVICE, Graph, Meta, Node, Ref, Size
from tvae.pipeline.engine.lower import lower
from tvae.pipeline.engine.rules.graph_sizes import GraphSizes


def constant(draw: Draw, op: str) -> OneOp:
    """One value everywhere, with rows, with tokens, or with a tiled prototype only."""
    g = OneOp(draw(heights), draw(widths))
    x = image(g)
    fill: tuple[float, ...] = (2.5,) if "full" in op else ()
    kwargs = {"dtype": torch.float64, "device": DEVICE, "pin_memory": False}
    overload = "memory_format" if op == "empty" else "default"
    prototype = (x,) if op.startswith("new_") else ()
    if draw(st.booleans()):
        made = g.call(f"{op}.{overload}", *prototype, [2, Size("h*w"), 4], *fill, shape=(2, "h*w", 4), **kwargs)
        if "empty" in op:
            g.values[made.id] = torch.zeros_like(g.value(made))
        return g.gives(g.call("add.Tensor", tokens(g), made), tolerance=0)
    if op.startswith("new_") and draw(st.booleans()):
        made = g.call(f"{op}.default", x, [2, 4, 1, 1], *fill, shape=(2, 4, 1, 1), **kwargs)
    else:
        size, shape = [2, 4, Size("h + 1"), Size("w")], (2, 4, "h + 1", "w")
        made = g.call(f"{op}.{overload}", *prototype, size, *fill, shape=shape, **kwargs)
    if "empty" in op:  # what is in it is no promise; only what becomes of it is
        g.values[made.id] = torch.zeros_like(g.value(made))
    return g.gives(made, g.call("neg.default", x), tolerance=0)


def empty_like(draw: Draw, op: str) -> OneOp:
    """In any layout."""
    g = OneOp(draw(heights), draw(widths))
    x = LAYOUTS[draw(any_layout)](g)
    made = g.call("empty_like.default", x)
    g.values[made.id] = torch.zeros_like(g.value(made))
    return g.gives(g.call("add.Tensor", x, made), tolerance=0)


def triangle(draw: Draw, op: str) -> OneOp:
    """Queries and keys in rows, with and without a diagonal; rows in the batch of triangles."""
    g = OneOp(draw(heights), draw(widths))
    x, diagonal = image(g), draw(st.integers(-3, 3))
    kind = draw(st.sampled_from(["rows", "keys whole", "batch"]))
    if kind == "batch":
        x = g.call("permute.default", x, [0, 2, 1, 3], shape=(2, "h", 4, "w"))
        return g.gives(g.call(f"{op}.default", x, diagonal), tolerance=0)
    if kind == "keys whole":
        return g.gives(g.call(f"{op}.default", x, diagonal), tolerance=0)
    square = g.call("new_ones.default", x, [Size("h"), Size("h")], shape=("h", "h"))
    made = g.call(f"{op}.default", square) if draw(st.booleans()) else g.call(f"{op}.default", square, diagonal)
    return g.gives(made, g.call("neg.default", x), tolerance=0)


def arange(draw: Draw, op: str) -> OneOp:
    """Every overload, whole and fractional steps, in every type, over rows and over tokens."""
    g = OneOp(draw(heights), draw(widths))
    x = image(g)
    size = draw(st.sampled_from(["h", "h*w"]))
    start, step = draw(st.integers(-3, 3)), draw(st.sampled_from([1, 2, 0.1]))
    kind = draw(st.sampled_from(["default", "start", "start_step"]))
    dtype = draw(st.sampled_from([torch.float32, torch.float64] + [torch.int64] * (step != 0.1)))
    if kind == "start_step":
        end = Size(f"{start} + {size}*{step} - {step}*0.5") if step == 0.1 else Size(f"{start} + {size}*{step}")
        args: tuple[Any, ...] = (start, end, step)
    else:
        args = (start, Size(f"{start} + {size}")) if kind == "start" else (Size(size),)
    made = g.call(f"arange.{kind}", *args, dtype=dtype, device=DEVICE, shape=(size,))
    if size == "h*w":  # positions of tokens
        made = g.call("add.Tensor", tokens(g, 1, 1), g.call("unsqueeze.default", made, -1, shape=(size, 1)))
    return g.gives(made, x, tolerance={torch.float32: 1e-6, torch.float64: 1e-14, torch.int64: 0}[dtype])


def identity(draw: Draw, op: str) -> OneOp:
    """Of tokens among themselves, of rows, and with other sizes."""
    g = OneOp(draw(heights), draw(widths))
    x = image(g)
    size = draw(st.sampled_from(["h", "h*w"]))
    dtype = draw(st.sampled_from([torch.float32, torch.int64, torch.bool]))
    if draw(st.booleans()):
        made = g.call("eye.default", Size(size), dtype=dtype, device=DEVICE, shape=(size, size))
    elif draw(st.booleans()):
        made = g.call("eye.m", 5, Size(size), dtype=dtype, device=DEVICE, shape=(5, size))
    else:
        made = g.call("eye.m", Size(size), 5, dtype=dtype, device=DEVICE, shape=(size, 5))
    return g.gives(made, x, tolerance=0)


def noise(draw: Draw, op: str) -> OneOp:
    """The draw of the untiled model, whatever the strips."""
    g = OneOp(draw(heights), draw(widths))
    x = image(g)
    kwargs = {"dtype": torch.float32, "device": DEVICE, "pin_memory": False}
    if op.endswith("_like"):
        made = g.call(f"{op}.default", x, **kwargs)
    else:
        made = g.call(f"{op}.default", [2, 1, Size("h"), Size("w")], shape=(2, 1, "h", "w"), **kwargs)
    return g.gives(g.call("add.Tensor", x, made), tolerance=0)


CASES: dict[str, Case] = {
    "empty_like": empty_like,
    **dict.fromkeys(["zeros", "new_zeros", "empty", "new_empty", "ones", "new_ones", "full", "new_full"], constant),
    "arange": arange,
    "eye": identity,
    **dict.fromkeys(["tril", "triu"], triangle),
    **dict.fromkeys(["randn", "rand", "randn_like", "rand_like"], noise),
}


FEW = st.integers(1, 3)


def _features(g: OneOp) -> Ref:
    return g.call("transpose.int", tokens(g), 1, 2, shape=(2, 4, "h*w"))


def joined(draw: Draw, g: OneOp) -> Ref:
    """A few tokens in front or after, mixed with all by attention, and taken off."""
    few, x = draw(FEW), tokens(g)
    own, front = g.param(2, few, 4), draw(st.booleans())
    parts = [own, x] if front else [x, own]
    every = g.call("cat.default", parts, 1, shape=(2, f"{few} + h*w", 4))
    seen = g.call("scaled_dot_product_attention.default", every, every, every)
    both = g.call("add.Tensor", every, seen)
    start, stop = (few, Size(f"{few} + h*w")) if front else (0, Size("h*w"))
    left = g.call("slice.Tensor", both, 1, start, stop, shape=(2, "h*w", 4))
    lo, hi = (0, few) if front else (Size("h*w"), Size(f"{few} + h*w"))
    taken = g.call("slice.Tensor", both, 1, lo, hi, shape=(2, few, 4))
    mean = g.call("mean.dim", taken, [1], True, shape=(2, 1, 4))
    return g.call("mul.Tensor", g.call("add.Tensor", left, x), mean)


def split_off(draw: Draw, g: OneOp) -> Ref:
    """The first tokens of all beside the others."""
    parts = g.call("split_with_sizes.default", tokens(g), [1, Size("h*w - 1")], 1, shape=[(2, 1, 4), (2, "h*w - 1", 4)])
    return g.call("cat.default", [g.part(parts, 1), g.part(parts, 0)], 1, shape=(2, "h*w", 4))


def convolved(draw: Draw, g: OneOp) -> Ref:
    """Along tokens, as many as before or fewer."""
    k, step = draw(st.sampled_from([1, 3])), draw(FEW)
    return g.call(
        "conv1d.default", _features(g), g.param(5, 4, k), None, [step], [k // 2], shape=(2, 5, f"(h*w - 1)//{step} + 1")
    )


def pooled(draw: Draw, g: OneOp) -> Ref:
    """Means of neighbouring tokens."""
    return g.call("avg_pool1d.default", _features(g), [3], [1], [1])


def padded(draw: Draw, g: OneOp) -> Ref:
    """More tokens at both ends."""
    lo, hi = draw(FEW), draw(FEW)
    mode = draw(st.sampled_from(["constant", "replicate"]))
    return g.call("pad.default", _features(g), [lo, hi], mode, shape=(2, 4, f"h*w + {lo + hi}"))


def turned(draw: Draw, g: OneOp) -> Ref:
    """Tokens backwards, and pushed around."""
    x = tokens(g)
    back = g.call("flip.default", x, [1])
    return g.call("sub.Tensor", g.call("roll.default", x, [draw(st.integers(-5, 5))], [1]), back)


def one_taken(draw: Draw, g: OneOp) -> Ref:
    """A single token for all."""
    x = tokens(g)
    one = g.call("select.int", x, 1, draw(st.sampled_from([0, -1])), shape=(2, 4))
    return g.call("mul.Tensor", x, g.call("unsqueeze.default", one, 1, shape=(2, 1, 4)))


def enlarged(draw: Draw, g: OneOp) -> Ref:
    """Twice as many tokens, between those that are there."""
    return g.call("upsample_linear1d.vec", _features(g), None, False, [2.0], shape=(2, 4, "2*h*w"))


def repeated(draw: Draw, g: OneOp) -> Ref:
    """All tokens twice, and one of them another."""
    twice = g.call("repeat.default", tokens(g), [1, 2, 1], shape=(2, "2*h*w", 4))
    return g.call("select_scatter.default", twice, g.param(2, 4), 1, 0, shape=(2, "2*h*w", 4))


def beside_others(draw: Draw, g: OneOp) -> Ref:
    """Tokens beside values of which each is a row of its own."""
    return g.call("cat.default", [tokens(g), g.input(2, "h*w", 4)], 2, shape=(2, "h*w", 8))


def few_rows(draw: Draw, g: OneOp) -> Ref:
    """Of a few rows, one by itself, and their sum by weights."""
    first = g.call("slice.Tensor", image(g), 2, 0, 1, shape=(2, 4, 1, "w"))
    last = g.call("slice.Tensor", image(g), 2, -1, None, shape=(2, 4, 1, "w"))
    both = g.call("cat.default", [first, last], 2, shape=(2, 4, 2, "w"))
    one = g.part(g.call("unbind.int", both, 2, shape=[(2, 4, "w")] * 2), draw(st.integers(0, 1)))
    mixed = g.call("einsum.default", "nchw,hk->nckw", [both, g.param(2, 1)], shape=(2, 4, 1, "w"))
    x = g.call("mul.Tensor", image(g), g.call("unsqueeze.default", one, 2, shape=(2, 4, 1, "w")))
    return g.call("add.Tensor", x, mixed)


def both_means(draw: Draw, g: OneOp) -> Ref:
    """Coordinate attention: means of rows and of columns go through one operation, and are taken apart."""
    x = image(g)
    rows = g.call("mean.dim", x, [3], True, shape=(2, 4, "h", 1))
    columns = g.call("mean.dim", x, [2], True, shape=(2, 4, 1, "w"))
    turned = g.call("permute.default", columns, [0, 1, 3, 2], shape=(2, 4, "w", 1))
    both = g.call("cat.default", [rows, turned], 2, shape=(2, 4, "h + w", 1))
    mixed = g.call("conv2d.default", both, g.param(4, 4, 1, 1))
    parts = g.call("split_with_sizes.default", mixed, [Size("h"), Size("w")], 2, shape=[(2, 4, "h", 1), (2, 4, "w", 1)])
    down, across = g.part(parts, 0), g.part(parts, 1)
    across = g.call("permute.default", across, [0, 1, 3, 2], shape=(2, 4, 1, "w"))
    return g.call("mul.Tensor", g.call("mul.Tensor", x, down), across)


@pytest.mark.parametrize(
    "build",
    [
        joined,
        split_off,
        convolved,
        pooled,
        padded,
        turned,
        one_taken,
        both_means,
        enlarged,
        repeated,
        beside_others,
        few_rows,
    ],
)
@given(data=st.data())
def test_rows_of_what_was_asked_for_equal_the_operations_on_everything(build: Any, data: Any) -> None:
    g = OneOp(data.draw(heights), data.draw(widths.filter(lambda w: w > 1)))
    x = build(data.draw, g)
    g.gives(x, g.call("neg.default", x))
    program = lower(g.graph, g.sizes, CPU)
    full = whole_values(program, g, data.draw)
    for id_, out in zip(program.outputs, g.graph.outputs, strict=True):
        same(full[id_], g.values[out], g.tolerance)
    execute_strips(program, g, data.draw(st.integers(1, program.rows + 1)))


def graph(*guards: str) -> Graph:
    shape = (1, 3, Size("h"), Size("w"))
    return Graph([Node("input", "x", outputs=(Meta(shape, torch.float32),))], [0], [0], list(guards), "h")


@pytest.mark.parametrize(
    ("guards", "height", "width", "wide"),
    [
        ((), 30, 4, True),
        (("1 + (w - 1)//4 == 1",), 256, 4, True),
        (("w == 4",), 256, 4, False),
        (("h % 4 == 3",), 255, 9, True),
        (("h % 13 == 7", "w % 11 == 3"), 59, 3, True),
        (("h % 64 == 63",), 127, 9, True),
        (("h % 5 == 2", "w > 8", "w < 13", "w != h"), 42, 11, True),
    ],
)
def test_sizes_of_which_a_graph_serves_few(guards: tuple[str, ...], height: int, width: int, wide: bool) -> None:
    at = GraphSizes(graph(*guards), {"h": height, "w": width})
    assert at.serves_others
    assert [at.follows(Size(size)) for size in ("h", "2*h*w", "w")] == [True, True, False]
    assert [at.is_wide(Size(size)) for size in ("w", "h")] == [wide, False]


@pytest.mark.parametrize("guard", ["h == 30", "h//8 == 3"])
def test_one_height_or_a_few(guard: str) -> None:
    assert not GraphSizes(graph(guard), {"h": 30, "w": 8}).serves_others


class Remainders(nn.Module):
    """Another border by the remainder of the height, and a result of a single column where the input has up to four."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.norm = nn.Conv2d(3, 8, 3, (1, 4), padding=1), nn.GroupNorm(4, 8)

    def encode(self, x: Tensor) -> Tensor:
        more = x.shape[2] % 4
        if more == 3:
            x = F.pad(x, (0, 0, 0, 1))
        elif more:
            x = F.pad(x, (0, 0, 2, 2 - more), mode="replicate")
        return F.avg_pool2d(self.norm(self.conv(x)), (4, 1))

    decode = encode


@pytest.mark.long
def test_a_model_with_a_graph_for_each_remainder_is_cut_at_each() -> None:
    model, wide = Remainders().eval(), Remainders().eval().double()
    tiled = TiledVAE(model, "cpu", strip=2)
    for height, width in ((51, 10), (255, 3), (50, 4), (49, 9), (48, 2)):
        x = torch.randn(2, 3, height, width)
        with torch.no_grad():
            want = wide.encode(x.double())
        assert (tiled.encode(x) - want).norm() < 1e-5 * want.norm()
        assert tiled.plan(tuple(x.shape), "encode").strips > 5


@pytest.mark.parametrize("op", CASES)
@given(data=st.data())
def test_rows_of_what_was_asked_for_equal_the_op_on_everything(op: str, data: Any) -> None:
    check(CASES[op], op, data)
