"""Whether a call on a caller's model goes in steps, and what it would do."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tvae.pipeline.engine.plan.report import Plan
from tvae.pipeline.models.calls import Call, Side
from tvae.pipeline.session.clip_plan import ClipPlan
from tvae.pipeline.session.session import Session
from tvae.pipeline.session.several_devices import SeveralDevices
from tvae.pipeline.session.task import Task

__all__ = ["in_steps", "planned_call"]


def in_steps(session: Session | SeveralDevices, side: Side, call: Call, dims: int) -> bool:
    """Does a clip go through this side step by step?"""
    return dims == 5 and call == Call() and session.steps(side) is not None


def planned_call(
    session: Session | SeveralDevices,
    side: Side,
    shape: Sequence[int],
    more: Sequence[Tensor],
    call: Call,
    device: torch.device,
) -> Plan | ClipPlan:
    """shape: of the first input. more: those after it. device: the model's."""
    if in_steps(session, side, call, len(shape)):
        return session.plan_clip(side, tuple(shape), whole=True)
    first = torch.empty((), dtype=session.dtype, device=device).expand(*shape)  # takes no memory
    return session.plan(Task(side), [first, *more], call, {})
