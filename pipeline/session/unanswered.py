"""A run that ranks share, where this one fails: the others get all messages that they wait for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tvae.pipeline.engine.ir.axis import shape_of_rows
from tvae.pipeline.engine.run.empty_run import META, empty_run, no_numbers
from tvae.pipeline.engine.run.storage import OwnRows, RowSource
from tvae.pipeline.session.choose_plan import ChosenPlan
from tvae.pipeline.session.outputs import Spec
from tvae.pipeline.session.peers import Peers
from tvae.pipeline.session.shared_run import SharedRun

__all__ = ["answered"]

Found = tuple[list[Any], Spec]


class _Given(NamedTuple):
    """An input, of which the run may let go. own: where there were own rows alone."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    own: tuple[Any, ...]

    def like(self, device: torch.device) -> Tensor:
        """One of this shape, in no memory."""
        return torch.empty((), dtype=self.dtype, device=device).expand(self.shape)


def answered(
    peers: Peers,
    run: Callable[[], Found],
    plan: Callable[[Sequence[Tensor], bool], tuple[ChosenPlan, SharedRun]],
    inputs: Sequence[Tensor | RowSource],
) -> Found:
    """What ``run`` gives. Where this rank fails, now or earlier in the call, no numbers, in tensors of the same shapes;
    its error is kept. plan: for inputs of these shapes; may the others be asked? Raises LookupError where they are to
    be and may not. Raises the error where they have not agreed on a plan yet, and so wait for a word of this rank; and
    outside a call."""
    failed = peers.failed
    if not failed.within:
        return run()
    device, before = inputs[0].device, peers.messages()
    given = [_Given(tuple(x.shape), x.dtype, (x.axis, x.own) if isinstance(x, OwnRows) else ()) for x in inputs]
    if failed.error is None:
        try:
            return run()
        except BaseException as error:  # whatever it is, the others wait for this rank
            failed.keep(error)
            like = [x.like(device) for x in given]
            try:
                found = plan(like, False)
            except Exception:  # whatever it is, it may have been the first error's cause
                raise error from None
    else:
        found = plan([x.like(device) for x in given], True)
    return _without(peers.empty(device, before), *found, given, device)


def _without(peers: Peers, plan: ChosenPlan, shared: SharedRun, given: Sequence[_Given], device: torch.device) -> Found:
    shared, program = replace(shared, peers=peers), plan.schedule.program
    for shape, dtype, own in given:
        if own and program.ranks is None:
            axis, rows = own
            lo, hi = rows[peers.rank]
            held = torch.empty(shape_of_rows(shape, axis, hi - lo), dtype=dtype, device=META)
            shared.put_together(OwnRows(held, shape, axis, rows))
    found: list[Tensor | None] = [None] * len(program.outputs)
    exchange = shared.exchange
    if program.ranks is not None and exchange is not None:
        left = [i for i, x in zip(program.inputs, given, strict=True) if x.own]
        found = empty_run(plan.schedule, exchange, left, channels_last=shared.channels_last)
    elif not shared.idle:
        found = [torch.empty(program.ops[i].shape, dtype=program.ops[i].dtype, device=META) for i in program.outputs]
    return [_on(x, device) for x in shared.results(found, META) if x is not None], {}


def _on(value: Tensor | OwnRows, device: torch.device) -> Tensor | OwnRows:
    if isinstance(value, OwnRows):
        return replace(value, rows=no_numbers(value.rows, device))
    return no_numbers(value, device)
