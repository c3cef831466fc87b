"""A program that takes what every size has alike from another of its graph is the one that is lowered by itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from tvae.pipeline.engine.capture.capture import capture
from tvae.pipeline.engine.ir.graph import Graph
from tvae.pipeline.engine.ir.program import Op, Program
from tvae.pipeline.engine.lower import lower
from tvae.pipeline.engine.passes import simplify
from tvae.pipeline.engine.plan.schedule import schedule
from tvae.pipeline.engine.run.execute import execute

CPU = torch.device("cpu")
SAID = (
    *("id", "name", "module", "inputs", "axis", "shape", "dtype", "whole_reads", "cheap", "constant", "kind"),
    *("indirect", "over", "replaces", "work", "packs", "other_bytes", "bytes", "row_bytes"),
)


class Net(nn.Module):
    """With a weight that nothing reads, one that is read by others alone, and dimensions in other orders."""

    def __init__(self) -> None:
        super().__init__()
        self.idle = nn.Parameter(torch.zeros(3))
        self.gain = nn.Parameter(torch.rand(8))
        self.first, self.norm, self.last = nn.Conv2d(4, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.Conv2d(8, 4, 3)
        self.mix = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.first(x)) * (2 * self.gain.exp()).view(8, 1, 1)
        y = self.mix(y.permute(0, -2, -1, 1)).transpose(-1, 1).transpose(-2, -1)
        return self.last(nn.functional.silu(y))  # type: ignore[no-any-return]


def graph_of(net: nn.Module) -> Graph:
    return simplify(capture(net, lambda x: [net(x)], [torch.zeros(1, 4, 12, 10, dtype=torch.double, device=CPU)]))


def said(op: Op) -> dict[str, Any]:
    return {name: getattr(op, name) for name in SAID}


def at(graph: Graph, rows: int, columns: int, like: Program | None = None) -> Program:
    sizes = graph.bind([(1, 4, rows, columns)])
    assert sizes is not None
    return lower(graph, sizes, CPU, like=like)


NET = Net().double()
GRAPH = graph_of(NET)


@given(rows=st.integers(6, 40), columns=st.integers(6, 40), strip=st.integers(1, 40))
def test_a_program_like_another_is_the_one_lowered_alone(rows: int, columns: int, strip: int) -> None:
    other = at(GRAPH, 24, 16)
    alone, like = at(GRAPH, rows, columns), at(GRAPH, rows, columns, other)
    assert [*map(said, like.ops)] == [*map(said, alone.ops)]
    for name in ("inputs", "outputs", "params", "rows", "whole"):
        assert getattr(like, name) == getattr(alone, name)
    assert {i: like.values[i] for i in alone.values} == alone.values
    shared = [op.id for op in like.ops if op.constant or op.name in ("group_stats", "finish_stats")]
    assert len(shared) > len(like.params) + 2
    assert all(like.ops[i] is other.ops[i] for i in shared)
    x = torch.randn(1, 4, rows, columns, dtype=torch.double, device=CPU)
    (y,) = execute(schedule(like, min(strip, rows)), [x], dict(NET.named_parameters()))
    assert y is not None
    torch.testing.assert_close(y, NET(x), rtol=1e-9, atol=1e-9)


def statistics(program: Program) -> list[Op]:
    return [op for op in program.ops if op.name in ("group_stats", "finish_stats")]


def test_nothing_is_taken_once_ops_have_other_numbers() -> None:
    other = at(GRAPH, 24, 16)
    first = min(node for node, op in other.values.items() if not other.ops[op].constant)
    like = at(GRAPH, 30, 20, replace(other, values={**other.values, first: len(other.ops)}))
    assert [*map(said, like.ops)] == [*map(said, at(GRAPH, 30, 20).ops)]
    assert not {*map(id, statistics(like))} & {*map(id, statistics(other))}


def test_statistics_of_another_shape_are_not_taken() -> None:
    other = at(GRAPH, 24, 16)
    more = [replace(op, shape=(2, 3, 8)) if op.name == "finish_stats" else op for op in other.ops]
    like = at(GRAPH, 30, 20, replace(other, ops=more))
    assert [*map(said, like.ops)] == [*map(said, at(GRAPH, 30, 20).ops)]


def test_what_an_op_says_more_is_counted_anew() -> None:
    op = at(GRAPH, 24, 16).ops[-1]
    before = op.bytes
    more = op.with_fields(other_bytes=5, over=3)
    assert (more.bytes, more.over, op.bytes, op.over) == (before + 5, 3, before, None)
    assert said(op.with_fields()) == said(op)
