"""Programs that ranks share, run by threads, and their results put together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from one_op import OneOp
from thread_ranks import ThreadExchange, together
from torch import Tensor

from tvae.pipeline.engine.ir.axis import rows_of
from tvae.pipeline.engine.ir.program import Program, Ranks
from tvae.pipeline.engine.plan.bounds import owned
from tvae.pipeline.engine.plan.other_rank import of_rank
from tvae.pipeline.engine.plan.schedule import Schedule
from tvae.pipeline.engine.run.execute import execute


def shared(program: Program, bands: tuple[tuple[int, int], ...]) -> Program:
    """The program as its widest rank has it."""
    ranks = Ranks(bands, 0)
    return replace(program, ranks=replace(ranks, rank=ranks.widest))


def run_ranks(plan: Schedule, inputs: list[Tensor], weights: dict[str, Tensor], **more: Any) -> list[list[Tensor]]:
    """The outputs of every rank."""

    def one(exchange: ThreadExchange) -> list[Tensor]:
        return execute(of_rank(plan, exchange.rank), list(inputs), weights, exchange=exchange, **more)

    return together(len(plan.program.ranks.bands), one)


def put_together(plan: Schedule, results: list[list[Tensor]]) -> list[Tensor]:
    """Every output of all ranks; those without rows are alike on all."""
    found = []
    for n, id_ in enumerate(plan.program.outputs):
        axis, parts = plan.program.ops[id_].axis, [its[n] for its in results]
        if axis is None:
            assert all(torch.equal(part, parts[0]) for part in parts)
            found.append(parts[0])
            continue
        for band, part in zip(plan.program.ranks.bands, parts, strict=True):
            lo, hi = owned(axis.rows, band, plan.program.rows)
            assert rows_of(part.shape, axis) == hi - lo
        split = [part.unflatten(axis.dim, (axis.outer, rows_of(part.shape, axis), axis.inner)) for part in parts]
        found.append(torch.cat(split, axis.dim + 1).flatten(axis.dim, axis.dim + 2))
    return found


def same_as_everything(plan: Schedule, g: OneOp, results: list[list[Tensor]]) -> None:
    for got, out in zip(put_together(plan, results), g.graph.outputs, strict=True):
        torch.testing.assert_close(got, g.values[out], rtol=1e-8, atol=1e-8)
