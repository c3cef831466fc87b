"""From a program and the limits of a run to the schedule that keeps them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from tvae.pipeline.engine.ir.program import Op, Program, constant_bytes
from tvae.pipeline.engine.plan.footprint import Footprint, at_most, footprint
from tvae.pipeline.engine.plan.height_bands import HeightBands
from tvae.pipeline.engine.plan.known import known_of
from tvae.pipeline.engine.plan.machine import CPU, CUDA, Machine, bound, seconds
from tvae.pipeline.engine.plan.planner import fitting, least, too_small
from tvae.pipeline.engine.plan.report import Plan, explain
from tvae.pipeline.engine.plan.schedule import Place, Schedule, by_rows
from tvae.pipeline.engine.plan.ways import Prior
from tvae.pipeline.engine.run.storage import ROWS, OwnRows, Pending, RowSink, RowSource
from tvae.pipeline.errors import PlanError
from tvae.pipeline.memory.disk_room import disk_room
from tvae.pipeline.memory.limits import (
    Limits,
    Overhead,
    activation_budget,
    has_room,
    host_room,
    overhead,
    unused_bytes,
)
from tvae.pipeline.session.strip_heights import heights, too_high

__all__ = ["ChosenPlan", "Example", "Room", "at_callers", "bytes_there", "choose_plan", "described", "rows_dim"]


_CLIP_BYTES = 768 << 20
"""Strips of a clip's time are as long as this much memory allows, where nobody named an amount: longer ones bring
little on a card that those keep busy, and a long clip takes no more than a short one."""
_LONGER = (3, 4, 6, 8, 12, 16, 24, 32)
"""Latent frames of a strip, to try while there is room."""


Room = tuple[int | None, int | None]
"""Bytes of the device and of the host, None where nothing is known."""
Agreed = Callable[[Callable[[], Room]], Room]
"""The least that any rank finds."""


@dataclass(frozen=True)
class ChosenPlan:
    """A schedule, and what it is expected to take.

    at_ease: with the strips that are preferred, and no buffer that had to leave the device. height_bands: those inside
    strips that divide time. to_come, there: see ``choose_plan``.
    """

    schedule: Schedule
    machine: Machine
    at_ease: bool
    height_bands: HeightBands | None = None
    to_come: int | None = None
    there: int | None = None

    @cached_property
    def cost(self) -> Footprint:
        """Counted where it is asked for: what plainly fits need not be."""
        return footprint(self.schedule, known_of(self.schedule.program))

    @property
    def bytes(self) -> int:
        """Expected on the device beside weights and workspaces."""
        return self.cost.device

    @property
    def seconds(self) -> float:
        """Expected time."""
        return seconds(self.schedule, self.cost, self.machine)

    @cached_property
    def _most(self) -> int | None:
        return at_most(self.schedule)

    @property
    def divides(self) -> bool:
        """Is there anything for strips to divide?"""
        program = self.schedule.program
        return program.ops[program.inputs[0]].axis is not None

    def fits(self, limits: Limits, device: torch.device) -> bool:
        """Is it still valid for the memory that is free now? Its inputs are there."""
        given = _given(self.schedule.program, self.schedule.places)
        if limits.vram is not None:
            return has_room(device, limits.vram, self.bytes - given + limits.beside)
        if self.fits_easily(limits, device, given):
            return True
        budget = activation_budget(device, None, limits.share, Overhead(0), given)
        return budget is None or self.bytes + limits.beside <= budget

    def fits_easily(self, limits: Limits, device: torch.device, given: int) -> bool:
        """Is there more room than it could take? Quicker to say than whether there is enough."""
        if self._most is None or limits.vram is not None:
            return False
        room = unused_bytes(device)
        return room is not None and self._most + limits.beside <= int(limits.share * (room + given))


def choose_plan(
    program: Program,
    limits: Limits,
    device: torch.device,
    places: Mapping[int, Place],
    height_bands: HeightBands | None = None,
    *,
    to_come: int | None = None,
    there: int | None = None,
    prior: Prior | None = None,
    agreed: Agreed | None = None,
) -> ChosenPlan:
    """The schedule for a program.

    places: from ``at_callers``. height_bands: of strips that divide time. to_come: see ``overhead``. there: bytes of
    the inputs that are on the device already; None: all of them. prior: see ``fitting``. agreed: of a program that
    ranks share, what is the least of all of them. Raises PlanError, of a run also where a disk has no room for its
    buffers; UsageError for the limits.
    """
    there = _given(program, places) if there is None else there
    strips, higher = heights(program, limits), too_high(program, limits)

    def told(schedule: Schedule, wanted: Sequence[int]) -> ChosenPlan:
        at_ease = schedule.strip_rows == wanted[0] and len(schedule.places) == len(places)
        return ChosenPlan(schedule, _rates(device), at_ease, height_bands, to_come, there)

    before = None if prior is None or limits.longest or higher else prior.rebuilt(program, strips[0], places)
    if before is not None and (known := told(before, strips)).fits_easily(limits, device, there):
        return known

    def room() -> Room:
        """Of the device and of the host."""
        taken = Overhead(0) if limits.vram is None else _overhead(program, device, limits, to_come, there)
        budget = activation_budget(device, limits.vram, limits.share, taken, there)
        if limits.vram is None and budget is not None:
            budget -= limits.beside
        return budget, _machine(device).host

    budget, host = room() if agreed is None else agreed(room)
    machine = replace(_machine(device), host=host)

    def fit(wanted: Sequence[int]) -> Schedule:
        return fitting(
            program, wanted, budget, machine, named, places, height_bands, enough=enough, prior=prior, higher=higher
        )

    def named(left: int) -> int:
        """As the user named it; counted back from what is left, it would grow with what planning itself takes."""
        return limits.vram or _overhead(program, device, limits, to_come, there).named(left)

    def enough(left: int) -> int:
        """As of a refusal: planning takes memory of its own."""
        return _overhead(program, device, limits, to_come, there).enough(left)

    def refused(smallest: int) -> PlanError:
        return too_small(named(budget or 0), enough(smallest))

    found = told(fit(strips), strips)
    for frames in (n for n in _LONGER if n <= limits.longest):
        longer = heights(program, replace(limits, strip=frames))
        if longer[0] <= strips[0] or found.bytes > _CLIP_BYTES:
            break
        way = told(fit([longer[0], *strips]), longer)
        if way.schedule.strip_rows != longer[0] or way.bytes > _CLIP_BYTES:
            break
        strips, found = longer, way
    if to_come is not None and "disk" in found.schedule.places.values():
        disk_room(found.cost.disk, limits.spill, "it")
    return found


def described(found: ChosenPlan, limits: Limits, device: torch.device, side: str) -> Plan:
    """The plan as it is told, with the least that any plan would need."""
    plan = found.schedule
    given = {i: place for i, place in plan.places.items() if place == "caller"}
    machine = _machine(device)
    strips = heights(plan.program, limits)
    most_modest = least(plan.program, strips, machine, given, found.height_bands)
    there = _given(plan.program, given) if found.there is None else found.there
    budget = _overhead(plan.program, device, limits, found.to_come, there).enough(most_modest)
    most = bound(plan, found.cost, machine)
    return replace(explain(plan, side), least_bytes=most_modest, least_budget=budget, seconds=found.seconds, bound=most)


def at_callers(program: Program, inputs: Sequence[Tensor | RowSource], sinks: Mapping[int, int]) -> dict[int, Place]:
    """The inputs and outputs that come and go by rows, where nothing needs them as a whole.

    sinks: of the outputs that are to go, by their number, the dimension of the rows they go by.
    """
    if not sinks and all(isinstance(x, Tensor) for x in inputs):
        return {}
    free = by_rows(program)
    places: dict[int, Place] = {}
    for id_, x in zip(program.inputs, inputs, strict=True):
        if not isinstance(x, (Tensor, OwnRows)) and id_ in free and _plain_rows(program.ops[id_], rows_dim(x)):
            places[id_] = "caller"
    for n, dim in sinks.items():
        out = program.ops[program.outputs[n]]
        alone = program.outputs.count(out.id) == 1
        if alone and _plain_rows(out, dim) and out.id in free and out.kind == "call":
            places[out.id] = "caller"
    return places


def bytes_there(program: Program, inputs: Sequence[Tensor | RowSource], places: Collection[int]) -> int:
    """Bytes of the inputs that are on the device already: of one that is only planned for there may be nothing."""
    device, found = inputs[0].device, 0
    for id_, x in zip(program.inputs, inputs, strict=True):
        if isinstance(x, Tensor) and x.device == device and id_ not in places:
            found += min(program.ops[id_].bytes, x.untyped_storage().nbytes())
    return found


@dataclass(frozen=True)
class Example:
    """A source that is only planned for: it has no rows yet."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    dim: int = ROWS

    def fetch(self, lo: int, hi: int) -> Pending:
        """Only a run asks for rows."""
        raise AssertionError("a plan computes nothing")


def rows_dim(rows: RowSource | RowSink) -> int:
    """The dimension of the rows that come from a source or go to a sink."""
    return getattr(rows, "dim", ROWS)


def _plain_rows(op: Op, dim: int) -> bool:
    return op.axis is not None and op.axis.plain and op.axis.dim == dim


def _overhead(program: Program, device: torch.device, limits: Limits, to_come: int | None, there: int) -> Overhead:
    made = constant_bytes(program)  # by the run, which keeps them
    weights = sum(program.ops[i].bytes for i in program.params) + made
    found = overhead(device, weights, there, to_come=None if to_come is None else to_come + made)
    return replace(found, bytes=found.bytes + limits.beside)


def _given(program: Program, places: Collection[int]) -> int:
    """Bytes of the inputs that a run has on the device."""
    return sum(program.ops[i].bytes for i in program.inputs if i not in places)


def _machine(device: torch.device) -> Machine:
    return replace(CUDA, host=host_room()) if device.type == "cuda" else CPU


def _rates(device: torch.device) -> Machine:
    return CUDA if device.type == "cuda" else CPU
