"""Rules of statistics: local where the rows are not among what is summed, folded over every row once where they are."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from one_op import CPU, LAYOUTS, ROWS_IN, Case, Draw, OneOp, any_layout, check, heights, other_dim, widths

from tvae.pipeline.engine.ir.graph import Ref
from tvae.pipeline.engine.lower import lower
from tvae.pipeline.engine.plan.schedule import schedule
from tvae.pipeline.engine.run.execute import execute


def group_norm(draw: Draw, op: str) -> OneOp:
    """With and without affine, over images, clips and tokens, rows folded into the batch, far from zero too."""
    dtype = draw(st.sampled_from([torch.float64, torch.float32]))
    g = OneOp(draw(heights), draw(st.integers(2, 4)), dtype)
    name = draw(st.sampled_from(["image", "clip", "folded", "tokens"]))
    groups = draw(st.sampled_from([1, 2, 4]))
    if name == "folded":
        x, channels = g.call("transpose.int", LAYOUTS["folded"](g), 1, 2, shape=("2*h", 4, "w")), 4
    elif name == "tokens":
        x, channels = g.call("transpose.int", LAYOUTS["tokens"](g, 8), 1, 2, shape=(2, 8, "h*w")), 8
    else:
        x, channels = LAYOUTS[name](g, 4 * draw(st.integers(1, 2))), 0
        channels = g.value(x).shape[1]
    affine = [g.param(channels), g.param(channels)] if draw(st.booleans()) else [None, None]
    more = draw(st.sampled_from([[], [1e-5], [1e-6, False]]))
    tolerance = 1e-9 if dtype == torch.float64 else 2e-5
    return g.gives(g.call("group_norm.default", x, groups, *affine, *more), tolerance=tolerance)


def instance_norm(draw: Draw, op: str) -> OneOp:
    """With and without affine, with statistics of the values and with running ones."""
    g = OneOp(draw(heights), draw(st.integers(2, 4)))
    x = LAYOUTS[draw(st.sampled_from(["image", "clip"]))](g)
    affine = [g.param(4), g.param(4)] if draw(st.booleans()) else [None, None]
    if draw(st.booleans()):
        return g.gives(g.call("instance_norm.default", x, *affine, None, None, True, 0.1, 1e-5, True))
    running = [g.param(4), g.param(value=torch.rand(4, generator=g.random, dtype=torch.float64) + 0.5)]
    return g.gives(g.call("instance_norm.default", x, *affine, *running, False, 0.1, 1e-5, True))


def statistic(draw: Draw, op: str) -> OneOp:
    """Any set of dimensions of any layout, with and without keeping them."""
    g = OneOp(draw(heights), draw(widths))
    name = draw(any_layout)
    x = LAYOUTS[name](g)
    shape, rows = list(g.shape_of(x)), ROWS_IN[name]
    keep = draw(st.booleans())
    if op in ("argmin", "argmax"):
        free = [d for d in range(len(shape)) if d != rows or name in ("image", "clip")]
        dims = [draw(st.sampled_from(free))]
    else:
        dims = sorted(draw(st.sets(st.integers(0, len(shape) - 1), min_size=1)))
    if op == "prod":
        dims = dims[:1]
    everything = len(dims) == len(shape)
    listed: Any = [d - len(shape) * draw(st.integers(0, 1)) for d in dims]
    left = [1 if d in dims else n for d, n in enumerate(shape) if keep or d not in dims]
    if op in ("argmin", "argmax"):
        return g.gives(g.call(f"{op}.default", x, listed[0], keep, shape=left), tolerance=0)
    if op in ("var", "std"):
        count = math.prod(g.number(shape[d]) for d in dims)
        if everything and not keep and count > 1 and draw(st.booleans()):
            return g.gives(g.call(f"{op}.default", x, draw(st.booleans()), shape=left))
        if count == 1 or draw(st.booleans()):
            correction = 0 if count == 1 else draw(st.sampled_from([0, 1, 0.5, None]))
            return g.gives(g.call(f"{op}.correction", x, listed, correction=correction, keepdim=keep, shape=left))
        return g.gives(g.call(f"{op}.dim", x, listed, draw(st.booleans()), keep, shape=left))
    if op == "logsumexp":
        return g.gives(g.call("logsumexp.default", x, listed, keep, shape=left))
    if op == "prod":
        return g.gives(g.call("prod.dim_int", x, listed[0], keep, shape=left))
    if op in ("amax", "amin"):
        return g.gives(g.call(f"{op}.default", x, [] if everything else listed, keep, shape=left), tolerance=0)
    if op == "linalg_vector_norm":
        order = draw(st.sampled_from([1, 2, 2.0, 3, 0.5, math.inf]))
        return g.gives(g.call("linalg_vector_norm.default", x, order, None if everything else listed, keep, shape=left))
    if op in ("any", "all", "nansum", "count_nonzero"):
        return _counted(draw, g, op, x, [] if everything else listed)
    if everything and not keep and draw(st.booleans()):
        return g.gives(g.call(f"{op}.default", x, shape=[]))
    if op == "sum" and draw(st.booleans()):
        x = g.call("gt.Scalar", x, 0.0)
        return g.gives(g.call("sum.dim_IntList", x, listed, keep, shape=left), tolerance=0)
    extra = {"dtype": torch.float32} if draw(st.booleans()) else {}
    overload = "dim" if op == "mean" else "dim_IntList"
    call = g.call(f"{op}.{overload}", x, listed, keep, shape=left, **extra)
    return g.gives(call, tolerance=1e-5 if extra else 1e-9)


def _counted(draw: Draw, g: OneOp, op: str, x: Ref, dims: list[int]) -> OneOp:
    """Statistics of what is zero, what is a number, and what is not."""
    x = g.call("sqrt.default", g.call("round.default", x)) if draw(st.booleans()) else g.call("gt.Scalar", x, 0.5)
    shape = list(g.shape_of(x))
    there = [d % len(shape) for d in dims] or list(range(len(shape)))
    keep = draw(st.booleans()) and op != "count_nonzero"
    left = [1 if d in there else n for d, n in enumerate(shape) if keep or d not in there]
    if op == "nansum":
        return g.gives(g.call("nansum.default", x, dims, keep, shape=left))
    if op == "count_nonzero":
        listed = dims or list(range(len(shape)))
        return g.gives(g.call("count_nonzero.dim_IntList", x, listed, shape=left), tolerance=0)
    if not dims and not keep:
        return g.gives(g.call(f"{op}.default", x, shape=[]), tolerance=0)
    if len(dims) == 1 and draw(st.booleans()):
        return g.gives(g.call(f"{op}.dim", x, dims[0], keep, shape=left), tolerance=0)
    return g.gives(g.call(f"{op}.dims", x, dims or None, keep, shape=left), tolerance=0)


def ordered(draw: Draw, op: str) -> OneOp:
    """Both results, along any dimension but the rows."""
    g = OneOp(draw(heights), draw(widths))
    name = draw(any_layout)
    x = LAYOUTS[name](g)
    if draw(st.booleans()):
        x = g.call("round.default", x)
    dim, shape = other_dim(draw, g, name, x), list(g.shape_of(x))
    if op in ("cummax", "cummin"):
        parts = g.call(f"{op}.default", x, dim, shape=[shape, shape])
        return g.gives(g.part(parts, 0), g.part(parts, 1), tolerance=0)
    keep = draw(st.booleans())
    left = [1 if d == dim % len(shape) else n for d, n in enumerate(shape) if keep or d != dim % len(shape)]
    given = [1, dim] if op == "kthvalue" else [dim]
    target = f"{op}.{'default' if op in ('kthvalue', 'mode') else 'dim'}"
    parts = g.call(target, x, *given, keep, shape=[left, left])
    return g.gives(g.part(parts, 0), g.part(parts, 1), tolerance=0)


def one_of_several(draw: Draw, op: str) -> OneOp:
    """Both results: of extremes, also over rows, with equal values and NaN; of variance and mean; of orders."""
    g = OneOp(draw(heights), draw(widths))
    name = draw(any_layout)
    x = LAYOUTS[name](g)
    shape, rows = list(g.shape_of(x)), ROWS_IN[name]
    if op in ("var_mean", "std_mean"):
        dims, keep = sorted(draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))), draw(st.booleans())
        left = [1 if d in dims else n for d, n in enumerate(shape) if keep or d not in dims]
        parts = g.call(f"{op}.correction", x, dims, correction=0, keepdim=keep, shape=[left, left])
        return g.gives(g.part(parts, 1), g.part(parts, 0))
    free = [d for d in range(len(shape)) if d != rows]
    if op in ("topk", "sort"):
        dim = draw(st.sampled_from(free))
        if op == "sort":
            parts = g.call("sort.default", x, dim, True, shape=[shape, shape])
        else:
            left = [1 if d == dim else n for d, n in enumerate(shape)]
            parts = g.call("topk.default", x, 1, dim, shape=[left, left])
        return g.gives(g.part(parts, 1), g.part(parts, 0), tolerance=0)
    dim, keep = draw(st.sampled_from([*free, rows] if name in ("image", "clip") else free)), draw(st.booleans())
    if draw(st.booleans()):
        x = g.call("round.default", x)
    if draw(st.booleans()):
        x = g.call("sqrt.default", x)
    left = [1 if d == dim else n for d, n in enumerate(shape) if keep or d != dim]
    parts = g.call(f"{op}.dim", x, dim, keep, shape=[left, left])
    return g.gives(g.part(parts, 0), g.part(parts, 1), g.call(f"{op}.default", x, shape=[]), tolerance=0)


_STATISTICS = (
    *("mean", "sum", "prod", "linalg_vector_norm", "amax", "amin", "argmin", "argmax", "var", "std", "logsumexp"),
    *("any", "all", "nansum", "count_nonzero"),
)

CASES: dict[str, Case] = {
    "group_norm": group_norm,
    "instance_norm": instance_norm,
    **dict.fromkeys(_STATISTICS, statistic),
    **dict.fromkeys(["var_mean", "std_mean", "topk", "sort"], one_of_several),
    **dict.fromkeys(["max", "min"], one_of_several),
    **dict.fromkeys(["median", "nanmedian", "kthvalue", "mode", "cummax", "cummin"], ordered),
}


@pytest.mark.parametrize("op", CASES)
@given(data=st.data())
def test_rows_of_what_was_asked_for_equal_the_op_on_everything(op: str, data: Any) -> None:
    check(CASES[op], op, data)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("strip", [1, 3, 16])
def test_a_group_norm_far_from_zero_is_as_near_to_float64_as_torchs(strip: int, affine: bool) -> None:
    """At a mean of 1e3 sums of squares would leave a variance of two digits in float32."""
    g = OneOp(16, 16, torch.float32)
    x = g.call("add.Tensor", LAYOUTS["image"](g, 8), 1e3)
    weights = (g.param(8), g.param(8)) if affine else (None, None)
    g.gives(g.call("group_norm.default", x, 4, *weights, 1e-6))
    wide = [None if w is None else g.value(w).double() for w in weights]
    want = F.group_norm(g.value(x).double(), 4, *wide, 1e-6)
    torchs = (g.values[-1] - want).norm()
    plan = schedule(lower(g.graph, g.sizes, CPU), strip)
    (got,) = execute(plan, [g.values[i] for i in g.graph.inputs], g.weights)
    assert (got - want).norm() <= 2 * torchs
    assert (got - want).norm() / want.norm() < 5e-5
