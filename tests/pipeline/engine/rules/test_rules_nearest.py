"""The rule of the nearest code: every row's vectors for themselves, in any strips."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from one_op import Case, Draw, OneOp, check, heights
from torch.profiler import ProfilerActivity, profile

from tvae.pipeline.engine.ir.fused_ops import nearest_code as nearest_codes
from tvae.pipeline.engine.ir.fused_ops import nearest_code_bytes
from tvae.pipeline.engine.lower import lower
from tvae.pipeline.errors import UnsupportedOp


def nearest_code(draw: Draw, op: str) -> OneOp:
    """Of pictures, one or more in turn, in whatever type."""
    dtype = draw(st.sampled_from([torch.float64, torch.float32, torch.bfloat16]))
    g = OneOp(draw(heights), draw(st.integers(2, 4)), dtype)
    n = draw(st.integers(1, 2))
    x = g.call("view.default", g.input(n, "h", "w", 4), [-1, 4], shape=(f"{n}*h*w", 4))
    codes = g.param(9, 4)
    distances = (g.wide(x)[:, None] - g.wide(codes)).square().sum(-1)
    return g.gives(g.fused(op, x, codes, value=distances.argmin(1), shape=(f"{n}*h*w",)), tolerance=0)


CASES: dict[str, Case] = {"nearest_code": nearest_code}


@pytest.mark.parametrize("op", CASES)
@given(data=st.data())
def test_rows_of_what_was_asked_for_equal_the_op_on_everything(op: str, data: Any) -> None:
    check(CASES[op], op, data)


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
