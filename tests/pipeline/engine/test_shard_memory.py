"""What a schedule that ranks share is said to take, against what each of them takes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from live_bytes import LiveBytes
from small_models import SMALL, Attention, Block, LinearAttention, Residual, Several, TwoNorms, built, graph_of
from small_models import image as picture
from thread_ranks import ThreadExchange, together
from torch import Tensor

from tvae.pipeline.engine.ir.program import Program, Ranks, even_bands
from tvae.pipeline.engine.lower import lower
from tvae.pipeline.engine.plan.footprint import footprint
from tvae.pipeline.engine.plan.machine import CPU
from tvae.pipeline.engine.plan.other_rank import of_rank
from tvae.pipeline.engine.plan.planner import fitting
from tvae.pipeline.engine.plan.report import explain
from tvae.pipeline.engine.plan.schedule import Schedule, schedule
from tvae.pipeline.engine.run.execute import execute

HEIGHT, WIDTH = 48, 24
COUNTED = [kind for kind in SMALL if kind not in (Attention, LinearAttention)]
"""In float64 attention has a workspace that nobody predicts; products of tokens copy their operands."""


def program_of(kind: type[Block], ranks: int) -> Program:
    sizes = graph_of(kind).bind([(2, 3, HEIGHT, WIDTH)])
    assert sizes is not None
    program = lower(graph_of(kind), sizes, torch.device("cpu"))
    return replace(program, ranks=Ranks(even_bands(HEIGHT, 1, ranks), 0)) if ranks > 1 else program


def weights_of(kind: type[Block]) -> dict[str, Tensor]:
    return dict(built(kind).named_parameters()) | graph_of(kind).constants


def measured(kind: type[Block], plan: Schedule, **how: Any) -> list[int]:
    """Most bytes of tensors alive at once, by rank."""
    x, weights = picture(HEIGHT, WIDTH), weights_of(kind)

    def one(exchange: ThreadExchange) -> int:
        mine = of_rank(plan, exchange.rank)
        lo, hi = mine.rooms[plan.program.inputs[0]]
        part = x[:, :, lo:hi].clone()
        with torch.no_grad(), LiveBytes(weights.values()) as live:
            execute(mine, [part], weights, exchange=exchange, **how)
        return live.peak

    return together(len(plan.program.ranks.bands), one)


@pytest.mark.parametrize("kind", COUNTED, ids=lambda k: k.__name__)
@pytest.mark.parametrize(("ranks", "strip"), [(2, 8), (3, 48)])
def test_each_rank_holds_what_was_said(kind: type[Block], ranks: int, strip: int) -> None:
    plan = schedule(program_of(kind, ranks), strip)
    said = [footprint(of_rank(plan, rank)).device for rank in range(ranks)]
    for found, most in zip(measured(kind, plan), said, strict=True):
        assert found <= 1.07 * most  # messages between threads are copied, and counted
        assert found >= 0.7 * most


@pytest.mark.parametrize("kind", [Residual, TwoNorms, Several], ids=lambda k: k.__name__)
def test_two_ranks_take_little_more_than_half_each(kind: type[Block]) -> None:
    alone, both = (footprint(schedule(program_of(kind, ranks), 6)).device for ranks in (1, 2))
    assert both < 0.62 * alone


@pytest.mark.parametrize("kind", COUNTED, ids=lambda k: k.__name__)
def test_a_budget_is_kept_by_every_rank(kind: type[Block], tmp_path: Any) -> None:
    """Some memory less than what it takes at ease: lower strips, writes over buffers, buffers on disk."""
    program = program_of(kind, 2)
    ease = fitting(program, [48, 24, 12, 6, 3, 1], None, CPU)
    budget = int(0.7 * footprint(ease).device)
    plan = fitting(program, [48, 24, 12, 6, 3, 1], budget, CPU)
    assert max(measured(kind, plan, spill=tmp_path)) <= 1.05 * budget


def test_the_plan_tells_the_band_and_what_comes_from_others() -> None:
    """One row of the buffer that a convolution reads; the picture is given to both."""
    plan = schedule(program_of(Residual, 2), 8)
    told = explain(of_rank(plan, 1), "decode")
    assert told.bands == ((0, 24), (24, 48))
    assert told.rank == 1
    row = 2 * WIDTH * torch.float64.itemsize
    assert told.received_bytes == 8 * row
    assert "rows 24 to 47 of the input, device 2 of 2" in str(told)
    alone = explain(schedule(program_of(Residual, 1), 8), "decode")
    assert 0.5 <= sum(b.bytes for b in told.buffers) / sum(b.bytes for b in alone.buffers) <= 0.55
