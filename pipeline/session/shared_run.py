"""One plan that ranks share: how many of them, each with which rows, and what becomes of their results."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tvae.pipeline.engine.ir.axis import crop
from tvae.pipeline.engine.ir.program import Op, Program, Ranks, even_bands
from tvae.pipeline.engine.plan.bounds import Rows, owned
from tvae.pipeline.engine.plan.other_rank import of_rank
from tvae.pipeline.engine.plan.shard import thin
from tvae.pipeline.engine.run.exchange import Exchange
from tvae.pipeline.engine.run.storage import OwnRows
from tvae.pipeline.errors import UsageError, in_module
from tvae.pipeline.session.choose_plan import ChosenPlan
from tvae.pipeline.session.peers import Peers

__all__ = ["SharedRun", "shared_plan"]

_log = logging.getLogger("tvae")
_FEW_ROWS = "it has too few rows for more"


def shared_plan(
    program: Program, peers: Peers, choose: Callable[[Program], ChosenPlan], *, unit: int, steps: bool = False
) -> ChosenPlan:
    """The plan as this rank runs it; a rank for which no rows are left has that of another, and runs nothing.

    choose: the plan of a program, the same on all ranks. unit: rows of the input that bands are multiples of. There are
    fewer ranks where bands of all would be thinner than the rows that they read of each other; and one alone, which is
    every rank for itself, where nothing can be divided, or where a statistic over all rows cannot be joined from those
    of ranks (UsageError for steps, and where ranks must share).
    steps: all steps of a clip have the same bands, however thin, since caches lie where the step before left them.
    """
    apart = [op for op in program.ops if op.reduction is not None and op.reduction.join is None]
    if apart and (steps or peers.must_share):
        raise UsageError(f"{_named(apart[0])} cannot be shared by several devices; use one")
    given = program.ops[program.inputs[0]]
    single = given.axis is None and len(given.shape) > 3 and given.shape[-2] == 1  # a constant to the graph
    divisible = given.axis is not None and not apart
    if not divisible and not single and peers.must_share:
        raise UsageError("this VAE has neither rows nor frames that several devices could share; use one")
    for count in range(peers.count if divisible else 1, 1, -1):
        bands = even_bands(program.rows, unit, count)
        if len(bands) < count:
            continue
        ranks = Ranks(bands, 0)
        found = choose(replace(program, ranks=replace(ranks, rank=ranks.widest)))
        if steps or not thin(found.schedule.program, found.schedule.segments):
            _told(count, peers, _FEW_ROWS)
            peers.meet(count)
            return replace(found, schedule=of_rank(found.schedule, min(peers.rank, count - 1)))
    why = _FEW_ROWS if divisible or single else "it has neither rows nor frames"
    _told(1, peers, f"{_named(apart[0])} cannot be shared" if apart else why)
    return choose(program)


def _named(op: Op) -> str:
    return f"operation '{op.name}' {in_module(op.module)}"


def _told(count: int, peers: Peers, why: str) -> None:
    if count < peers.count and peers.rank == 0:
        _log.warning("only %d of %d devices share this: %s", count, peers.count, why)


@dataclass(frozen=True)
class SharedRun:
    """What a run does with the results of a program that ranks share. steps: it is a step of a clip: its result stays
    where its rows are, and so do the caches that it leaves."""

    program: Program
    peers: Peers
    steps: bool
    channels_last: bool

    @property
    def exchange(self) -> Exchange | None:
        """With the other ranks of the program; None where this rank runs nothing, or all of it alone."""
        return self.peers.exchange(self._count) if self.program.ranks else None

    @property
    def recordable(self) -> bool:
        """Can this rank's part be a CUDA graph, messages included?"""
        exchange = self.exchange
        return exchange is None or exchange.recordable

    @property
    def idle(self) -> bool:
        """Has this rank no rows, or, of what is not shared, no use for the result?"""
        if self.program.ranks is None:
            return self.peers.first_only and self.peers.rank > 0 and not self.steps
        return self.peers.rank >= self._count

    @property
    def _count(self) -> int:
        return 1 if self.program.ranks is None else len(self.program.ranks.bands)

    def put_together(self, value: OwnRows) -> Tensor:
        """All rows of what an earlier step left, on every rank."""
        return self.peers.whole(value.rows, value.axis, value.own, channels_last=self.channels_last, everywhere=True)

    def own(self, rows: int) -> list[Rows]:
        """The rows of every rank of a value with so many; of those without a band none."""
        ranks, idle = self.program.ranks, (rows, rows)
        bands = [(0, self.program.rows)] if ranks is None else ranks.bands
        mine = [owned(rows, band, self.program.rows) for band in bands]
        return mine + [idle] * (self.peers.count - len(mine))

    def results(self, found: Sequence[Tensor | None], device: torch.device) -> list[Tensor | OwnRows | None]:
        """The outputs as the caller wants them, from this rank's."""
        return [self._result(n, value, device) for n, value in enumerate(found)]

    def _result(self, n: int, value: Tensor | None, device: torch.device) -> Tensor | OwnRows | None:
        op, peers = self.program.ops[self.program.outputs[n]], self.peers
        if self.program.ranks is None:  # every rank that wants it has all of it
            if value is None or peers.gather or self.steps:
                return value
            if op.axis is not None:
                return crop(value, op.axis, *self.own(op.axis.rows)[peers.rank])
            maps = value.ndim > 3  # nothing to divide, as of a single row: the first rank has all of them
            return value[..., :0, :] if maps and peers.rank else value
        if op.axis is None:
            return value if self._count == peers.count else peers.from_first(value, op.shape, op.dtype, device)
        part = peers.nothing(op.shape, op.axis, op.dtype, device) if value is None else value
        own = self.own(op.axis.rows)
        if self.steps:
            return OwnRows(part, op.shape, op.axis, tuple(own))
        return peers.whole(part, op.axis, own, channels_last=self.channels_last) if peers.gather else part
