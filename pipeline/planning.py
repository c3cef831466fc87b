"""From a program and the limits of a run to the schedule that keeps them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tvae.pipeline.budget import Besides, Limits, activation_budget, besides, host_room
from tvae.pipeline.engine.across import Across
from tvae.pipeline.engine.boundary import ROWS, RowSource
from tvae.pipeline.engine.footprint import footprint
from tvae.pipeline.engine.plan import Plan, explain
from tvae.pipeline.engine.planner import CPU, CUDA, Machine, fitting, least, seconds
from tvae.pipeline.engine.program import Op, Program
from tvae.pipeline.engine.schedule import Place, Schedule, by_rows

__all__ = ["Planned", "at_callers", "described", "planned"]


_MOST_ELEMENTS = 1 << 30
"""Of a value in one strip: libraries count with 32 bits, and take long to try their algorithms on more."""


@dataclass(frozen=True)
class Planned:
    """A schedule, the bytes it is expected to hold on the device beside weights and workspaces, and its time.

    at_ease: with the strips that are preferred, and no buffer that had to leave the device. across: the height, where
    strips divide time. loaded: the weights had their place already.
    """

    schedule: Schedule
    bytes: int
    seconds: float
    at_ease: bool
    across: Across | None = None
    loaded: bool = False

    @property
    def divides(self) -> bool:
        """Is there anything for strips to divide?"""
        program = self.schedule.program
        return program.ops[program.inputs[0]].axis is not None

    def fits(self, limits: Limits, device: torch.device) -> bool:
        """Does it still, when it was made for the memory that was free then?"""
        if limits.vram is not None:
            return True
        taken = _besides(self.schedule.program, device, self.loaded)
        budget = activation_budget(device, limits.vram, limits.share, taken)
        return budget is None or self.bytes <= budget


def planned(
    program: Program,
    limits: Limits,
    device: torch.device,
    places: Mapping[int, Place],
    across: Across | None = None,
    *,
    loaded: bool = False,
) -> Planned:
    """The schedule for a program. places: from ``at_callers``. across: the height, where strips divide time. loaded:
    the weights are in memory. Raises PlanError, UsageError for the limits."""
    taken = _besides(program, device, loaded)
    budget = activation_budget(device, limits.vram, limits.share, taken)
    strips, machine = _strips(program, limits), _machine(device)
    found = fitting(program, strips, budget, machine, taken.named, places, across)
    cost = footprint(found)
    at_ease = found.strip_rows == strips[0] and len(found.places) == len(places)
    return Planned(found, cost.device, seconds(found, cost, machine), at_ease, across, loaded)


def described(found: Planned, limits: Limits, device: torch.device, side: str) -> Plan:
    """The plan as it is told, with the least that any plan would need."""
    plan = found.schedule
    given = {i: place for i, place in plan.places.items() if place == "caller"}
    machine = _machine(device)
    most_modest = least(plan.program, _strips(plan.program, limits), machine, given, found.across)
    budget = _besides(plan.program, device, found.loaded).named(most_modest)
    time = seconds(plan, footprint(plan), machine)
    return replace(explain(plan, side), least_bytes=most_modest, least_budget=budget, seconds=time)


def at_callers(program: Program, inputs: Sequence[Tensor | RowSource], sink: bool) -> dict[int, Place]:
    """The inputs and the output that come and go by rows, where nothing needs them as a whole."""
    if not sink and all(isinstance(x, Tensor) for x in inputs):
        return {}
    free = by_rows(program)
    places: dict[int, Place] = {}
    for id_, x in zip(program.inputs, inputs, strict=True):
        if not isinstance(x, Tensor) and id_ in free and _plain_rows(program.ops[id_]):
            places[id_] = "caller"
    out = program.ops[program.outputs[0]]
    if sink and _plain_rows(out) and out.id in free and out.kind == "call":
        places[out.id] = "caller"
    return places


def _plain_rows(op: Op) -> bool:
    return op.axis is not None and op.axis.plain and op.axis.dim == ROWS


def _besides(program: Program, device: torch.device, loaded: bool) -> Besides:
    params, inputs = (sum(program.ops[i].bytes for i in ids) for ids in (program.params, program.inputs))
    return besides(device, params, inputs, loaded=loaded)


def _machine(device: torch.device) -> Machine:
    return replace(CUDA, host=host_room()) if device.type == "cuda" else CPU


def _strips(program: Program, limits: Limits) -> list[int]:
    heights = list(dict.fromkeys(_in_input_rows(program, n) for n in limits.strips()))
    if limits.fixed:
        return heights
    widest = max((math.prod(op.shape) for op in program.ops if op.axis is not None), default=1)
    highest = max(1, _MOST_ELEMENTS * program.rows // widest)
    low_enough = [rows for rows in heights if rows <= highest]
    return low_enough or [min(highest, heights[-1])]


def _in_input_rows(program: Program, strip: int) -> int:
    """Rows of the input that ``strip`` latent rows are; the latent is the lower of input and output.

    Of a clip whose first frame stands apart: as many as a later latent frame has.
    """
    out = program.ops[program.outputs[0]].axis
    rows_out = out.rows if out else program.rows
    latent = max(1, min(rows_out, program.rows))
    if latent > 1 and program.rows % latent and (program.rows - 1) % (latent - 1) == 0:
        return strip * ((program.rows - 1) // (latent - 1))
    return -(-strip * program.rows // latent)
