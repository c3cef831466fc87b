"""Memory that runs out in the middle of a run: the strip is done again in halves, and no number changes.

Operations that take memory fail, each in a run of its own, by way of a mode that sees all of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from one_op import CPU, OneOp, image
from resnet import convolved, normed, resnet_block, summed
from slow_but import slow_but
from small_models import SMALL, Attention, Block, LinearAttention, built, graph_of
from small_models import image as picture
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tvae.pipeline.engine.ir.program import Program
from tvae.pipeline.engine.ir.sizes import Size
from tvae.pipeline.engine.lower import lower
from tvae.pipeline.engine.plan.schedule import Schedule, movable, placed, schedule
from tvae.pipeline.engine.run.execute import execute

HEIGHT, TRIES = 12, 14


class Full(TorchDispatchMode):
    """Memory runs out in the n-th operation that takes some, counted from 0; ``seen`` counts them."""

    def __init__(self, fails: int | None = None) -> None:
        super().__init__()
        self.fails, self.seen = fails, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if takes_memory(func, args, kwargs):
            self.seen += 1
            if self.seen - 1 == self.fails:
                raise torch.OutOfMemoryError("CUDA out of memory")
        return func(*args, **kwargs)


def takes_memory(func: Any, args: Any, kwargs: Any) -> bool:
    """By its schema: some result is no alias of an operand."""
    if any(isinstance(leaf, Tensor) for leaf in tree_leaves((args, kwargs))):
        return any(r.alias_info is None for r in func._schema.returns)
    return True


def survived(plan: Schedule, inputs: list[Tensor], weights: dict[str, Tensor], **how: Any) -> float:
    """The share of runs that went on after memory ran out; where that of a buffer cannot be had they end."""
    want = execute(plan, inputs, weights, **how)
    with Full() as mode:
        execute(plan, inputs, weights, **how)
    tried, alive = range(0, mode.seen, max(1, mode.seen // TRIES)), 0
    for n in tried:
        try:
            with Full(n):
                got = execute(plan, inputs, weights, **how)
        except torch.OutOfMemoryError:
            continue
        alive += 1
        for a, b in zip(got, want, strict=True):
            assert a is not None
            assert b is not None
            torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)
    return alive / len(tried)


def of_graph(g: OneOp) -> Program:
    return lower(g.graph, g.sizes, CPU)


@pytest.mark.parametrize("kind", SMALL, ids=lambda k: k.__name__)
@pytest.mark.parametrize("strip", [5, HEIGHT])
def test_small_models(kind: type[Block], strip: int) -> None:
    graph = graph_of(kind)
    sizes = graph.bind([(2, 3, HEIGHT, 6)])
    assert sizes is not None
    plan = schedule(lower(graph, sizes, CPU), strip)
    weights = dict(built(kind).named_parameters()) | graph.constants
    assert survived(plan, [picture(HEIGHT)], weights) > 0.3


@pytest.mark.parametrize("kind", [Attention, LinearAttention], ids=lambda k: k.__name__)
@pytest.mark.parametrize("place", slow_but(["host"], ["host", "disk"]))
def test_buffers_elsewhere(kind: type[Block], place: str, tmp_path: Path) -> None:
    """Keys and values among them."""
    graph = graph_of(kind)
    sizes = graph.bind([(2, 3, HEIGHT, 6)])
    assert sizes is not None
    plan = schedule(lower(graph, sizes, CPU), 4)
    plan = placed(plan, dict.fromkeys(movable(plan), place))
    weights = dict(built(kind).named_parameters()) | graph.constants
    assert survived(plan, [picture(HEIGHT)], weights, spill=tmp_path) > 0.5
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("channels_last", [False, True], ids=["plain", "channels-last"])
@pytest.mark.parametrize("defer", [False, True], ids=["sums", "all"])
def test_what_is_written_over_is_still_there_for_a_second_try(channels_last: bool, defer: bool) -> None:
    """Sums in place, and convolutions' results behind the strips."""
    g = OneOp(HEIGHT, 5)
    x = image(g, 4, 1)
    _, sum_ = resnet_block(g, x)
    y = convolved(g, normed(g, convolved(g, normed(g, sum_))))
    second = summed(g, convolved(g, normed(g, y)), convolved(g, x), g.param(4))
    g.gives(convolved(g, normed(g, second)), channels_last=channels_last)
    plan = schedule(of_graph(g), 4)
    plan = placed(plan, {}, defer=defer)
    assert sum(len(segment.reuse) for segment in plan.segments) >= 1 + 2 * defer
    assert survived(plan, g.inputs(), g.weights, channels_last=channels_last) >= 0.6


@pytest.mark.parametrize("place", [None, "host"])
def test_rows_that_were_kept_for_strips_to_come(place: str | None) -> None:
    """Some of them are gone by then: they are computed again. Without that, half the runs end."""
    g = OneOp(HEIGHT, 5)
    y = convolved(g, normed(g, convolved(g, image(g, 4, 1))))
    for _ in range(3):
        y = convolved(g, y)
    g.gives(y)
    program = of_graph(g)
    whole = schedule(program, 3)
    away = {} if place is None else dict.fromkeys(movable(whole), place)
    plan = schedule(program, 3, away, slides=range(len(whole.segments)))
    assert survived(plan, g.inputs(), g.weights) > 0.7


def test_a_single_strip_that_failed_leaves_no_buffers() -> None:
    """Its values became the buffers, and one that repeats its columns has no memory for them."""
    g = OneOp(HEIGHT, 5)
    x = image(g, 4, 1)
    mean = g.call("mean.dim", x, [3], True, shape=(1, 4, "h", 1))
    columns = g.call("expand.default", mean, [1, 4, Size("h"), Size("w")], shape=x)
    g.gives(columns, convolved(g, convolved(g, x)))
    assert survived(schedule(of_graph(g), HEIGHT), g.inputs(), g.weights) >= 0.5
