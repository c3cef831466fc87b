"""Norms over the last dimensions, the rows among them or not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from one_op import LAYOUTS, Case, Draw, OneOp, any_layout, check, heights, image, widths
from refusals import refused_and_exact

from tvae.pipeline.engine.ir.graph import Ref
from tvae.pipeline.engine.ir.sizes import Size


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


CASES: dict[str, Case] = dict.fromkeys(["layer_norm", "rms_norm"], either)


@pytest.mark.parametrize("op", CASES)
@given(data=st.data())
def test_rows_of_what_was_asked_for_equal_the_op_on_everything(op: str, data: Any) -> None:
    check(CASES[op], op, data)


def test_weights_with_rows_are_refused() -> None:
    def build(g: OneOp) -> Ref:
        x, weight = image(g), g.input("h", "w")
        return g.call("layer_norm.default", x, [Size("h"), Size("w")], weight)

    refused_and_exact("its weights have rows", build)
