"""Keys and values that are not on the device: attention sees a few of their rows at a time."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from live_bytes import LiveBytes
from one_op import CPU, OneOp, clip, image
from small_models import Attention, built, eager, graph_of
from small_models import image as picture
from torch import Tensor

from tvae.pipeline.engine.ir.graph import Ref
from tvae.pipeline.engine.ir.program import Op, Program
from tvae.pipeline.engine.lower import lower
from tvae.pipeline.engine.plan.footprint import footprint
from tvae.pipeline.engine.plan.machine import CPU as DISK
from tvae.pipeline.engine.plan.machine import CUDA as HOST
from tvae.pipeline.engine.plan.planner import fitting, least
from tvae.pipeline.engine.plan.schedule import Schedule, movable, placed, schedule
from tvae.pipeline.engine.run.execute import execute
from tvae.pipeline.errors import PlanError

HEIGHT, WIDTH, C = 9, 3, 6
FRAMES = 3
places = pytest.mark.parametrize("place", ["host", "disk"])


def tokens(g: OneOp, x: Ref, count: str, heads: int) -> Ref:
    """[N, C, ...] -> [N, heads, tokens, C / heads]."""
    n, c = int(g.value(x).shape[0]), int(g.value(x).shape[1])
    split = g.call("reshape.default", x, [n, heads, c // heads, -1], shape=(n, heads, c // heads, count))
    return g.call("transpose.int", split, 2, 3, shape=(n, heads, count, c // heads))


def projected(g: OneOp, x: Ref) -> Ref:
    dims = g.value(x).ndim - 2
    kernel = g.param(C, C, *[1] * dims)
    return g.call(f"conv{dims}d.default", x, kernel, None, [1] * dims, [0] * dims)


def plain(heads: int) -> OneOp:
    """``scaled_dot_product_attention`` over a picture's pixels."""
    g = OneOp(HEIGHT, WIDTH)
    x = image(g, C)
    q, k, v = (tokens(g, projected(g, x), "h*w", heads) for _ in range(3))
    return g.gives(g.call("scaled_dot_product_attention.default", q, k, v, shape=q))


def wide(frames: int, order: bool) -> OneOp:
    """``tvae.wide_attention`` of a clip, each frame seeing its own keys and those before."""
    g = OneOp(HEIGHT, WIDTH)
    x = clip(g, C, 2, frames)
    q, k, v = (tokens(g, projected(g, x), f"{frames}*h*w", 1) for _ in range(3))
    a, b, c = (g.value(t) for t in (q, k, v))
    frame = torch.arange(frames).repeat_interleave(HEIGHT * WIDTH)
    mask = (frame[:, None] >= frame[None, :]) if order else None
    value = F.scaled_dot_product_attention(a, b, c, mask, scale=0.3)
    return g.gives(g.fused("wide_attention", q, k, v, 0.3, frames if order else 1, value=value))


CASES = {"one head": lambda: plain(1), "heads": lambda: plain(3), "a clip": lambda: wide(2, False)}
CASES |= {"frames": lambda: wide(FRAMES, True)}


def attention_of(program: Program) -> Op:
    (op,) = (op for op in program.ops if op.chunked)
    return op


def lowered(g: OneOp) -> Program:
    return lower(g.graph, g.sizes, CPU)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("strip", [1, 4, HEIGHT])
@places
def test_it_is_the_same_attention(case: str, strip: int, place: str, tmp_path: Path) -> None:
    """With keys or values or both elsewhere."""
    g = CASES[case]()
    program = lowered(g)
    plan = schedule(program, strip)
    chunked = attention_of(program).chunked
    assert chunked is not None
    assert set(chunked.sources) <= set(movable(plan))
    for n in (1, 2):
        for away in itertools.combinations(chunked.sources, n):
            there = placed(plan, dict.fromkeys(away, place))  # type: ignore[arg-type]
            (got,) = execute(there, g.inputs(), g.weights, spill=tmp_path)
            torch.testing.assert_close(got, g.values[g.graph.outputs[0]], rtol=1e-11, atol=1e-11)
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_seen_in_parts_stays() -> None:
    """Keys under a mask, and those that something else needs as a whole."""
    g = OneOp(HEIGHT, WIDTH)
    x = image(g, C)
    q, k, v = (tokens(g, projected(g, x), "h*w", 1) for _ in range(3))
    mask = g.param(1, 1, 1, 1)
    g.gives(g.call("scaled_dot_product_attention.default", q, k, v, mask, shape=q))
    program = lowered(g)
    op = next(op for op in program.ops if op.whole_reads)
    assert op.chunked is None
    assert not set(op.whole_reads) & set(movable(schedule(program, 2)))

    g = OneOp(HEIGHT, WIDTH)
    x = image(g, C)
    q, k, v = (tokens(g, projected(g, x), "h*w", 1) for _ in range(3))
    seen = g.call("scaled_dot_product_attention.default", q, k, v, shape=q)
    scores = g.call("transpose.int", k, 2, 3, shape=(2, 1, C, "h*w"))
    product = g.call("matmul.default", q, scores, shape=(2, 1, "h*w", "h*w"))
    g.gives(seen, product)
    program = lowered(g)
    chunked = attention_of(program).chunked
    assert chunked is not None
    values = chunked.sources[1]
    assert values in movable(schedule(program, 2))
    (got, other) = execute(schedule(program, 2, {values: "disk"}), g.inputs(), g.weights)
    torch.testing.assert_close(got, g.value(seen), rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(other, g.value(product), rtol=1e-11, atol=1e-11)


# -- memory and choice -------------------------------------------------------------------------------------------------
def attention_program(height: int, width: int) -> Program:
    graph = graph_of(Attention)
    sizes = graph.bind([(2, 3, height, width)])
    assert sizes is not None
    return lower(graph, sizes, CPU)


def keys_and_values(plan: Schedule) -> tuple[int, ...]:
    chunked = attention_of(plan.program).chunked
    assert chunked is not None
    return chunked.sources


def test_scores_that_are_passed_over_count() -> None:
    """In parts every score is written and read again and again; whoever has the memory for another way takes that."""
    program = attention_program(64, 32)
    attention, plan = attention_of(program), schedule(program, 64)
    there = placed(plan, dict.fromkeys(keys_and_values(plan), "host"))
    here, away = (sum(part.copied for part in footprint(one).segments) for one in (plan, there))
    times = sum(attention.id in segment.body for segment in there.segments)
    queries, keys = (program.ops[i].shape for i in attention.inputs[:2])
    assert away - here == times * math.prod(queries[:-1]) * keys[-2] * 9 * attention.dtype.itemsize


@pytest.mark.parametrize("machine", [DISK, HOST], ids=["disk", "host"])
def test_they_leave_when_the_budget_needs_it_and_not_before(machine: object) -> None:
    program = attention_program(1024, 512)
    both = sum(program.ops[i].bytes for i in keys_and_values(schedule(program, 16)))
    heights = (16, 8, 4)
    roomy = fitting(program, heights, None, machine)  # type: ignore[arg-type]
    assert not roomy.places
    enough = least(program, heights, machine, {})  # type: ignore[arg-type]
    base = program.ops[program.inputs[0]].bytes + program.ops[program.outputs[0]].bytes
    assert enough - base < 0.6 * both
    tight = fitting(program, heights, enough, machine)  # type: ignore[arg-type]
    assert set(tight.places) & set(keys_and_values(tight))
    assert footprint(tight).device <= enough
    with pytest.raises(PlanError, match="the smallest that works is"):
        fitting(program, heights, enough - 1, machine)  # type: ignore[arg-type]
    # every strip of queries sees all keys: they are moved as often
    cost, moved = footprint(tight), set(tight.places) & set(keys_and_values(tight))
    seen = sum(program.ops[i].bytes for i in moved) * (1 + len(tight.segments[0].strips))
    assert cost.moved >= seen


@pytest.mark.parametrize("strip", [2, 6])
def test_the_device_holds_what_was_said(strip: int, tmp_path: Path) -> None:
    program, x = attention_program(48, 24), picture(48, 24)
    weights = dict(built(Attention).named_parameters()) | graph_of(Attention).constants
    plan = placed(schedule(program, strip), dict.fromkeys(movable(schedule(program, strip)), "disk"))
    with LiveBytes(weights.values()) as live:
        (got,) = execute(plan, [x], weights, spill=tmp_path)
    torch.testing.assert_close(got, eager(Attention, x)[0], rtol=1e-10, atol=1e-10)
    assert 0.55 * footprint(plan).device <= live.peak <= 1.05 * footprint(plan).device


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_narrow_types_lose_no_more_than_their_own_rounding(dtype: torch.dtype) -> None:
    """Scores and sums are float32: no further from float64 than PyTorch's own attention."""
    g = OneOp(32, 16, dtype)
    q, k, v = (tokens(g, image(g, 64, 1), "h*w", 1) for _ in range(3))
    q, k, v = (g.call("mul.Tensor", t, 2.0) for t in (q, k, v))
    g.gives(g.call("scaled_dot_product_attention.default", q, k, v, shape=q))
    program = lowered(g)
    plan = schedule(program, 4)
    chunked = attention_of(program).chunked
    assert chunked is not None
    values: list[Tensor] = [g.value(t) for t in (q, k, v)]
    want = F.scaled_dot_product_attention(*(t.double() for t in values))
    (here,) = execute(plan, g.inputs(), g.weights)
    (there,) = execute(placed(plan, dict.fromkeys(chunked.sources, "host")), g.inputs(), g.weights)
    assert here is not None
    assert there is not None
    own, ours = ((t.double() - want).norm() / want.norm() for t in (here, there))
    assert ours <= 1.02 * own
