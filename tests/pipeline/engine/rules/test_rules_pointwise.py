"""Rules of elementwise operations: broadcasting, complex numbers, random draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from inside import runners_of
from live_bytes import LiveBytes
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
    other_dim,
    tokens,
    widths,
)
from refusals import refused_and_exact
from tiny_vaes import waves
from torch import Tensor
from uncut_models import Uncut

from tvae.pipeline import TiledVAE
from tvae.pipeline.engine.ir.graph import DEVICE, Node, Ref
from tvae.pipeline.engine.lower import lower
from tvae.pipeline.engine.rules.context import draws
from tvae.pipeline.errors import UnsupportedOp

_UNARY = (
    "square abs neg sin cos exp relu silu gelu elu mish sigmoid tanh softplus leaky_relu hardtanh hardswish relu6 "
    "round floor ceil sign nan_to_num logical_not clone alias detach lift_fresh_copy contiguous zeros_like ones_like "
    "tan atan sinh cosh asinh erf erfc exp2 expm1 sinc trunc frac sgn isnan isinf isfinite "
    "selu celu hardsigmoid log_sigmoid softshrink hardshrink "
    "angle deg2rad lgamma signbit isneginf isposinf"
)


_POSITIVE = "sqrt rsqrt reciprocal log log2 log10 log1p"


_UNIT = "asin acos atanh acosh erfinv logit"


_BINARY = (
    "add.Tensor sub.Tensor mul.Tensor div.Tensor rsub.Tensor maximum.default minimum.default lt.Tensor le.Tensor "
    "gt.Tensor ge.Tensor eq.Tensor ne.Tensor logical_and.default pow.Tensor_Tensor clamp_min.Tensor clamp_max.Tensor "
    "fmax.default fmin.default atan2.default hypot.default fmod.Tensor remainder.Tensor floor_divide.default "
    "logaddexp.default logaddexp2.default xlogy.Tensor copysign.Tensor logical_xor.default heaviside.default"
)


_OF_TWO = ("max", "min")


"""Statistics, but for two values."""


_BITS = (
    "bitwise_or bitwise_xor bitwise_not __and__ __or__ __xor__ __lshift__ __rshift__ "
    "bitwise_left_shift bitwise_right_shift"
)


_SCALAR = (
    "clamp masked_fill where bitwise_and logical_or to _to_copy dropout feature_dropout alpha_dropout "
    "feature_alpha_dropout full_like type_as threshold addcmul addcdiv lerp"
)


def _layout(draw: Draw, g: OneOp) -> tuple[str, Ref]:
    name = draw(any_layout)
    return name, LAYOUTS[name](g)


def unary(draw: Draw, op: str) -> OneOp:
    """One operand in any layout."""
    g = OneOp(draw(heights), draw(widths))
    _, x = _layout(draw, g)
    if op in _POSITIVE.split():
        x = g.call("add.Tensor", g.call("abs.default", x), 0.1)
    if op in _UNIT.split():
        x = g.call("add.Tensor", g.call("mul.Tensor", g.call("sigmoid.default", x), 0.9), float(op == "acosh"))
    return g.gives(g.call(f"{op}.default", x))


def binary(draw: Draw, op: str) -> OneOp:
    """Two operands: alike, broadcast from a weight, from one row, from fewer dimensions, or the same one twice."""
    target = f"{op}.other" if op in _OF_TWO else next(t for t in _BINARY.split() if t.startswith(f"{op}."))
    g = OneOp(draw(heights), draw(widths))
    kind = draw(st.sampled_from(["alike", "weight", "row", "rank", "itself"]))
    if kind == "alike":
        name, x = _layout(draw, g)
        y = LAYOUTS[name](g)
    elif kind == "weight":
        name, x = _layout(draw, g)
        y = g.param(4, 1, 1) if name == "image" else g.param(1)
    elif kind == "row":
        x = image(g)
        y = g.call("slice.Tensor", image(g), 2, 0, 1, shape=(2, 4, 1, "w"))
    elif kind == "rank":
        x, y = image(g), g.input("h", "w")
    else:
        _, x = _layout(draw, g)
        y = x
    if op in ("pow", "xlogy", "fmod", "remainder", "floor_divide"):
        x, y = (g.call("add.Tensor", g.call("abs.default", v), 0.1) for v in (x, y))
    shape = x
    if draw(st.booleans()):
        x, y = y, x
    return g.gives(g.call(target, x, y, shape=shape))


def scalar(draw: Draw, op: str) -> OneOp:
    """Arguments that are plain numbers."""
    g = OneOp(draw(heights), draw(widths))
    _, x = _layout(draw, g)
    calls: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
        "clamp": ("clamp.default", (x, -0.5, 0.5), {}),
        "masked_fill": ("masked_fill.Scalar", (x, g.call("gt.Scalar", x, 0.0), float("-inf")), {}),
        "where": ("where.self", (g.call("le.Scalar", x, 0.1), x, g.param(1)), {}),
        "bitwise_and": ("bitwise_and.Tensor", (g.call("gt.Scalar", x, 0.0), g.call("lt.Scalar", x, 1.0)), {}),
        "logical_or": ("logical_or.default", (g.call("gt.Scalar", x, 1.0), g.call("lt.Scalar", x, 0.0)), {}),
        "to": ("to.dtype", (x, torch.float32), {}),
        "_to_copy": ("_to_copy.default", (x,), {"dtype": torch.float32, "device": DEVICE}),
        "dropout": ("dropout.default", (x, 0.5, False), {}),
        **{
            f"{n}dropout": (f"{n}dropout.default", (x, 0.5, False), {})
            for n in ("feature_", "alpha_", "feature_alpha_")
        },
        "threshold": ("threshold.default", (x, 0.1, 2.0), {}),
        "addcmul": ("addcmul.default", (x, x, g.param(1)), {"value": 0.5}),
        "addcdiv": ("addcdiv.default", (x, g.param(1), g.call("exp.default", x)), {"value": 0.5}),
        "lerp": ("lerp.Scalar", (x, g.call("neg.default", x), 0.3), {}),
        "full_like": ("full_like.default", (x, 2.5), {"pin_memory": False}),
        "type_as": ("type_as.default", (x, g.param(value=torch.zeros(1, dtype=torch.float32))), {}),
    }
    target, args, kwargs = calls[op]
    return g.gives(g.call(target, *args, shape=x, **kwargs), tolerance=0)


def bits(draw: Draw, op: str) -> OneOp:
    """Of whole numbers."""
    g = OneOp(draw(heights), draw(widths), torch.int64)
    _, x = _layout(draw, g)
    if op == "bitwise_not":
        return g.gives(g.call("bitwise_not.default", x), tolerance=0)
    other = g.param(value=torch.tensor([3])) if draw(st.booleans()) else g.call("square.default", x)
    return g.gives(g.call(f"{op}.Tensor", x, other), tolerance=0)


def prelu(draw: Draw, op: str) -> OneOp:
    """A slope for each channel, or one."""
    g = OneOp(draw(heights), draw(widths))
    x = LAYOUTS[draw(st.sampled_from(["image", "clip"]))](g)
    return g.gives(g.call("prelu.default", x, g.param(draw(st.sampled_from([1, 4])))))


def glu(draw: Draw, op: str) -> OneOp:
    """Over channels and features."""
    g = OneOp(draw(heights), draw(widths))
    if draw(st.booleans()):
        return g.gives(g.call("glu.default", image(g), 1, shape=(2, 2, "h", "w")))
    return g.gives(g.call("glu.default", tokens(g), shape=(2, "h*w", 2)))


def channel_shuffle(draw: Draw, op: str) -> OneOp:
    """In groups."""
    g = OneOp(draw(heights), draw(widths))
    return g.gives(g.call("channel_shuffle.default", image(g), 2), tolerance=0)


def addmm(draw: Draw, op: str) -> OneOp:
    """Pixels in the batch, with both factors."""
    g = OneOp(draw(heights), draw(widths))
    x = g.call("view.default", g.input("h", "w", 4), [-1, 4], shape=("h*w", 4))
    factors = draw(st.sampled_from([{}, {"beta": 0.5}, {"beta": 0, "alpha": 2}]))
    bias = draw(st.sampled_from([(5,), (1, 5)]))
    return g.gives(g.call("addmm.default", g.param(*bias), x, g.param(4, 5), shape=("h*w", 5), **factors))


def expand_as(draw: Draw, op: str) -> OneOp:
    """The second operand gives the shape."""
    g = OneOp(draw(heights), draw(widths))
    x, y = g.input(2, 1, "h", "w"), image(g)
    return g.gives(g.call("expand_as.default", x, y, shape=y), tolerance=0)


def linear(draw: Draw, op: str) -> OneOp:
    """Mixes the features of tokens."""
    g = OneOp(draw(heights), draw(widths))
    x = LAYOUTS[draw(st.sampled_from(["tokens", "clip_tokens", "folded"]))](g)
    bias = [g.param(5)] if draw(st.booleans()) else []
    return g.gives(g.call("linear.default", x, g.param(5, 4), *bias, shape=[*g.shape_of(x)[:-1], 5]))


def softmax(draw: Draw, op: str) -> OneOp:
    """Over any dimension, the rows too; far from zero, and where nothing but -inf is in some."""
    g = OneOp(draw(heights), draw(widths))
    _, x = _layout(draw, g)
    ndim = len(g.shape_of(x))
    dim = draw(st.integers(-ndim, ndim - 1))
    if draw(st.booleans()):
        x = g.call("masked_fill.Scalar", g.call("add.Tensor", x, 500.0), g.call("gt.Scalar", x, 0.0), float("-inf"))
    extra = (False,) if op == "_softmax" else (None,)
    return g.gives(g.call(f"{op}.{'default' if op == '_softmax' else 'int'}", x, dim, *extra))


def embedding(draw: Draw, op: str) -> OneOp:
    """The indices carry the rows."""
    g = OneOp(draw(heights), draw(widths), torch.int64)
    x = LAYOUTS[draw(any_layout)](g)
    table = g.param(value=torch.randn(5, 3, generator=g.random))
    return g.gives(g.call("embedding.default", table, x, shape=[*g.shape_of(x), 3]), tolerance=0)


def cdist(draw: Draw, op: str) -> OneOp:
    """Tokens to the entries of a codebook, with and without a batch."""
    g = OneOp(draw(heights), draw(widths))
    if draw(st.booleans()):
        x = tokens(g)
        shape: list[int | str] = [2, "h*w", 6]
        codes = g.param(2, 6, 4)
    else:
        x = g.call("view.default", g.input("h", "w", 4), [-1, 4], shape=("h*w", 4))
        shape = ["h*w", 6]
        codes = g.param(6, 4)
    extra = {"cdist": (2.0,), "_cdist_forward": (2.0, None), "_euclidean_dist": ()}[op]
    return g.gives(g.call(f"{op}.default", x, codes, *extra, shape=shape), tolerance=1e-6)


def batch_norm(draw: Draw, op: str) -> OneOp:
    """With running statistics."""
    g = OneOp(draw(heights), draw(widths))
    x = draw(st.sampled_from([LAYOUTS["image"], LAYOUTS["clip"]]))(g)
    variance = g.param(value=torch.rand(4, generator=g.random, dtype=torch.float64) + 0.5)
    affine = (g.param(4), g.param(4)) if draw(st.booleans()) else (None, None)
    return g.gives(g.call("batch_norm.default", x, *affine, g.param(4), variance, False, 0.1, 1e-5, True))


CASES: dict[str, Case] = {
    **dict.fromkeys([*_UNARY.split(), *_POSITIVE.split(), *_UNIT.split()], unary),
    **dict.fromkeys(_BITS.split(), bits),
    "prelu": prelu,
    "glu": glu,
    "channel_shuffle": channel_shuffle,
    "addmm": addmm,
    **dict.fromkeys([t.split(".")[0] for t in _BINARY.split()], binary),
    **dict.fromkeys(_SCALAR.split(), scalar),
    "expand_as": expand_as,
    "linear": linear,
    **dict.fromkeys(["softmax", "_softmax", "log_softmax"], softmax),
    "embedding": embedding,
    **dict.fromkeys(["cdist", "_cdist_forward", "_euclidean_dist"], cdist),
    "batch_norm": batch_norm,
}


def whole(g: OneOp) -> Ref:
    return g.param(2, 4, g.sizes["h"], g.sizes["w"])


def one_row(g: OneOp) -> Ref:
    """All of a map in the one row of another dimension, as windows as high as the picture are."""
    six = g.call("slice.Tensor", image(g), 2, 0, 6, shape=(2, 4, 6, "w"))
    rows = g.call("permute.default", six, [2, 0, 1, 3], shape=(6, 2, 4, "w"))
    windows = g.call("reshape.default", rows, [1, 6, 2, 4, g.sizes["w"]], shape=(1, 6, 2, 4, "w"))
    back = g.call("permute.default", windows, [0, 2, 3, 1, 4], shape=(1, 2, 4, 6, "w"))
    return g.call("reshape.default", back, [2, 4, 6, g.sizes["w"]], shape=(2, 4, 6, "w"))


def first_rows(g: OneOp) -> Ref:
    return g.call("slice.Tensor", image(g), 2, 0, 6, shape=(2, 4, 6, "w"))


def added(g: OneOp) -> Ref:
    return g.call("add.Tensor", image(g), whole(g), shape=(2, 4, "h", "w"))


def added_to_fewer_rows(g: OneOp) -> Ref:
    return g.call("add.Tensor", first_rows(g), g.param(6, 1), shape=(2, 4, 6, "w"))


def chosen(g: OneOp) -> Ref:
    return g.call("maximum.default", one_row(g), first_rows(g), shape=(2, 4, 6, "w"))


def joined(g: OneOp) -> Ref:
    return g.call("cat.default", [whole(g), image(g)], 1, shape=(2, 8, "h", "w"))


def stacked(g: OneOp) -> Ref:
    return g.call("stack.default", [image(g), whole(g)], shape=(2, 2, 4, "h", "w"))


def stacked_last(g: OneOp) -> Ref:
    return g.call("stack.default", [one_row(g), first_rows(g)], -1, shape=(2, 4, 6, "w", 2))


def multiplied(g: OneOp) -> Ref:
    left = g.call("unsqueeze.default", image(g), -1, shape=(2, 4, "h", "w", 1))
    return g.call("matmul.default", left, g.param(2, 4, g.sizes["h"], 1, 3), shape=(2, 4, "h", "w", 3))


def whole_queries(g: OneOp) -> Ref:
    x = tokens(g)
    return g.call("scaled_dot_product_attention.default", g.param(2, 3, 4), x, x, shape=(2, 3, 4))


BUILDS: tuple[Callable[[OneOp], Ref], ...] = (
    added,
    added_to_fewer_rows,
    chosen,
    joined,
    stacked,
    stacked_last,
    multiplied,
    whole_queries,
)


@pytest.mark.parametrize("build", BUILDS)
def test_a_strip_takes_its_rows(build: Callable[[OneOp], Ref]) -> None:
    g = OneOp(7, 3)
    g.gives(build(g))
    program = lower(g.graph, g.sizes, CPU)
    for strip in (1, 2, 4, 7):
        execute_strips(program, g, strip)


def pairs(g: OneOp, x: Ref) -> Ref:
    """Of real and imaginary parts."""
    return g.call("view_as_real.default", x, shape=(*g.shape_of(x), 2))


def of_two(draw: Draw, op: str) -> OneOp:
    """Of two maps: parts, or a size and an angle; also of a weight and a map."""
    g = OneOp(draw(heights), draw(widths))
    if draw(st.booleans()):
        x, y = g.param(value=torch.rand(4, 1, 1, dtype=torch.float64)), image(g)
    else:
        layout = LAYOUTS[draw(any_layout)]
        x, y = layout(g), layout(g)
    made = g.call(f"{op}.default", g.call("abs.default", x), y, shape=y)
    turned = g.call("mul.Tensor", made, made)
    return g.gives(pairs(g, turned))


def to_and_fro(draw: Draw, op: str) -> OneOp:
    """Pairs in any layout but along the rows, turned by a weight."""
    g = OneOp(draw(heights), draw(widths))
    name = draw(any_layout)
    x = LAYOUTS[name](g)
    shape = g.shape_of(x)
    both = g.call("stack.default", [x, g.call("neg.default", x)], -1, shape=(*shape, 2))
    angle = g.param(value=torch.randn(1, dtype=torch.complex128))
    turned = g.call("mul.Tensor", g.call("view_as_complex.default", both, shape=shape), angle)
    dim = other_dim(draw, g, name, x)
    return g.gives(pairs(g, g.call("flip.default", turned, [dim])))


def vectors(draw: Draw, op: str) -> OneOp:
    """Of rows and a weight, of a weight and rows, of rows and columns, and of rows and rows."""
    g = OneOp(draw(heights), draw(widths))

    def line(dim: int, other: int) -> Ref:
        first = g.call("select.int", image(g), 0, 0, shape=(4, "h", "w"))
        second = g.call("select.int", first, 0, 1, shape=("h", "w"))
        return g.call("select.int", second, other, 0, shape=("h",) if dim == 0 else ("w",))

    rows, kind = line(0, 1), draw(st.sampled_from(["weight last", "weight first", "columns", "rows"]))
    if kind == "weight last":
        return g.gives(g.call(f"{op}.default", rows, g.param(5), shape=("h", 5)))
    if kind == "weight first":
        return g.gives(g.call(f"{op}.default", g.param(5), rows, shape=(5, "h")))
    if kind == "columns":
        return g.gives(g.call(f"{op}.default", rows, line(1, 0), shape=("h", "w")))
    return g.gives(g.call(f"{op}.default", rows, line(0, 1), shape=("h", "h")))


CASES |= {
    **{"complex": of_two, "polar": of_two, "view_as_complex": to_and_fro, "view_as_real": to_and_fro},
    **{"outer": vectors, "ger": vectors},
}


def rows_in_pairs(g: OneOp) -> Ref:
    upright = g.call("transpose.int", image(g), 2, 3, shape=(2, 4, "w", "h"))
    laid_out = g.call("clone.default", upright, memory_format=torch.contiguous_format)
    return pairs(g, g.call("view_as_complex.default", laid_out, shape=(2, 4, "w")))


def test_rows_that_are_parts_are_refused() -> None:
    refused_and_exact("rows are the pairs", rows_in_pairs, height=2)


X = Ref(0)


GRU = X, X, [X], True, 1


@pytest.mark.parametrize(
    ("target", "args", "kwargs", "expected"),
    [
        ("aten.bernoulli.default", (X,), {}, True),
        ("aten.multinomial.default", (X, 3), {}, True),
        ("aten.gru.input", (*GRU, 0.0, False, False, True), {}, False),
        ("aten.gru.input", (*GRU, 0.5, True, False, True), {}, True),
        ("aten.dropout.default", (X, 0.5, False), {}, False),
        ("aten.dropout.default", (X, 0.5, True), {}, True),
        ("aten.scaled_dot_product_attention.default", (X, X, X, None, 0.0), {}, False),
        ("aten.scaled_dot_product_attention.default", (X, X, X), {}, False),
        ("aten._scaled_dot_product_flash_attention_for_cpu.default", (X, X, X), {"dropout_p": 0.1}, True),
        ("aten.rrelu_with_noise.default", (X, X), {"training": False}, False),
        ("aten.sin.default", (X,), {}, False),
        ("tvae.conv_add", (X,), {}, False),
    ],
)
def test_only_some_calls_draw(target: str, args: tuple[Any, ...], kwargs: dict[str, Any], expected: bool) -> None:
    assert draws(Node("call", target, args, kwargs)) is expected


class Dropped(Uncut):
    """Drops values in evaluation mode, too."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def between(self, h: Tensor) -> Tensor:
        if self.kind == "attention":
            return F.scaled_dot_product_attention(h, h, h, dropout_p=0.3)
        dropped: Tensor = getattr(F, self.kind)(h, 0.3, training=True)
        return dropped


@torch.no_grad()
@pytest.mark.parametrize("kind", ["dropout", "dropout2d", "alpha_dropout", "attention"])
def test_what_drops_values_at_random_is_not_computed_strip_by_strip(kind: str) -> None:
    """Other values would be dropped than the model drops with the same generator."""
    torch.manual_seed(3)
    model, x = Dropped(kind).eval(), waves((1, 3, 24, 20))
    with pytest.raises(UnsupportedOp, match=r"random numbers.*allow_whole"):
        TiledVAE(model, strip=4).decode(x)
    torch.manual_seed(5)
    want = model.decode(x)
    torch.manual_seed(5)
    torch.testing.assert_close(TiledVAE(model, strip=4, allow_whole=True).decode(x), want, rtol=1e-4, atol=1e-5)


class Drawn(Uncut):
    """Each value is kept by chance, as often as it says."""

    def between(self, h: Tensor) -> Tensor:
        return self.norm(torch.bernoulli(h.sigmoid()))


def test_the_copy_that_is_drawn_from_is_in_the_plan() -> None:
    torch.manual_seed(3)
    model, x = Drawn().eval(), waves((1, 3, 48, 256))
    tiled = TiledVAE(model, allow_whole=True, strip=16)
    tiled.decode(x)
    prepared = [t for runner in runners_of(tiled) for t in runner._constants.values()]
    with torch.no_grad(), LiveBytes([*model.parameters(), *prepared]) as live:
        tiled.decode(x)
    assert live.peak <= 1.08 * tiled.plan(tuple(x.shape), "decode").peak_bytes


@pytest.mark.parametrize("op", [*CASES, *_OF_TWO])
@given(data=st.data())
@settings(max_examples=settings.default.max_examples // 2)  # of each of many operations, in a few forms
def test_rows_of_what_was_asked_for_equal_the_op_on_everything(op: str, data: Any) -> None:
    check(CASES.get(op, binary), op, data)
