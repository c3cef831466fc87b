"""Is a call sooner done where several devices share its rows? From its plans, and what sharing takes beside them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvae.pipeline.engine.plan.machine import CUDA
from tvae.pipeline.engine.plan.report import Plan, time_text
from tvae.pipeline.errors import PlanError
from tvae.pipeline.session.clip_plan import ClipPlan

__all__ = ["AnyPlan", "Expected", "expected", "expected_of_all"]

AnyPlan = Plan | ClipPlan
Call = tuple[Callable[[], AnyPlan], Callable[[], AnyPlan]]
"""Its plan on one device, which may raise PlanError, and the plan of the rank with the most rows where it is shared."""

_START_SECONDS = 4.5
"""To start the processes of devices, once a command, where one device needs none. Two H100, one picture 4096x4096 of
SDXL's shape: decode 14.1 s with two, 9.7 s with one; encode 11.3 and 7.4 s; computing takes 0.2 s less with two."""
_SEGMENT_SECONDS = 2.5e-3
"""The least that a segment takes whose end ranks wait for: starting its operations one by one, and two or three
exchanges. Two H100, NCCL, SDXL's shape: decode (32 segments) takes 72 to 82 ms and encode (24 segments) 61 ms, at
1024x1024 and at 2048x2048. From 4096x4096 on times are within a fifth of the plan's."""


@dataclass(frozen=True)
class Expected:
    """Seconds. alone: with whole items, one on each device; None where one fits into no device's memory. together:
    where ``devices`` share the rows of each item; None where starting alone takes longer than ``alone``. start: what
    sharing takes once, beyond what whole items take."""

    alone: float | None
    together: float | None
    devices: int
    start: float

    @property
    def pays(self) -> bool:
        """Are rows to be shared?"""
        return self.alone is None or (self.together is not None and self.together + self.start < self.alone)

    def __str__(self) -> str:
        alone = "a device has too little memory for all rows"
        if self.alone is not None:
            alone = f"about {time_text(self.alone)} with all rows on a device"
        parts = [] if self.together is None else [time_text(self.together)]
        parts += [f"{time_text(self.start)} to start"] if self.start else []
        return f"{alone}, {' and '.join(parts)} with rows on {self.devices} devices"


def expected(
    calls: Sequence[Call], devices: int, times: int = 1, *, several: bool = False, quick: bool = False
) -> Expected:
    """Of one item that is these calls, so many times. several: there are other items, so that whole ones have a process
    each, too. quick: do not plan further what cannot pay."""
    start = 0.0 if several else _START_SECONDS
    try:
        alone: float | None = times * sum(plan().seconds for plan, _ in calls)
    except PlanError:
        alone = None
    if quick and alone is not None and alone <= start:
        return Expected(alone, None, devices, start)
    return Expected(alone, times * sum(_together(plan()) for _, plan in calls), devices, start)


def expected_of_all(items: Sequence[Expected], devices: int) -> Expected:
    """Of fewer items than devices, all at once on one device each, or one after the other on all devices."""
    alone = [one.alone for one in items if one.alone is not None]
    together = [one.together for one in items if one.together is not None]
    longest = max(alone, default=0.0) if len(alone) == len(items) else None
    start = max((one.start for one in items), default=0.0)
    return Expected(longest, sum(together) if len(together) == len(items) else None, devices, start)


def _together(plan: AnyPlan) -> float:
    if isinstance(plan, ClipPlan):
        return sum(step.count * _together(step.plan) for step in plan.steps)
    if not plan.bands:
        return plan.seconds
    return max(plan.seconds, _SEGMENT_SECONDS * len(plan.segments)) + plan.received_bytes / CUDA.link
