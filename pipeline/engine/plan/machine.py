"""How long a schedule is expected to take: rates of a device, and an estimate that is good for comparing schedules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tvae.pipeline.engine.ir.program import Program
from tvae.pipeline.engine.plan.footprint import Footprint
from tvae.pipeline.engine.plan.schedule import Place, Schedule, Segment
from tvae.pipeline.engine.plan.segment_footprint import SegmentFootprint

__all__ = ["CPU", "CUDA", "Bound", "Machine", "bound", "seconds", "segment_seconds"]

Bound = Literal["arithmetic", "memory", "starts", "link", "disk"]
"""What takes most of a run's time: computing, the device's memory, starting operations, the host, the disk."""


@dataclass(frozen=True)
class Machine:
    """What times are estimated from: operations and bytes a second (of the device's memory, of the link to the host, of
    the disk), seconds to start an operation; where buffers go that leave the device, and how much the host may take.
    cache: bytes; strips with no larger value are the faster the higher they are."""

    operations: float
    memory: float
    link: float
    start: float
    elsewhere: Place
    disk: float = 1e9
    host: int | None = None
    cache: int = 0


CPU = Machine(1e11, 1e10, 1e9, 2e-5, "disk", cache=8 << 20)
"""A few cores and a local disk. Low strips of small values take them up to a third longer: each convolution lays out
its weights once more. From 16 MiB up they take as long or less (two cores of an AMD EPYC, SDXL's shape)."""
CUDA = Machine(6e14, 3e12, 4.5e10, 1e-5, "host")
"""A data-centre card on PCIe 5; what matters is the proportion, and that differs little between cards."""


def seconds(plan: Schedule, cost: Footprint, machine: Machine) -> float:
    """An estimate of a schedule's time: good for comparing schedules of one program, no more."""
    return sum(
        segment_seconds(plan.program, segment, taken, machine)
        for segment, taken in zip(plan.segments, cost.segments, strict=True)
    )


def bound(plan: Schedule, cost: Footprint, machine: Machine) -> Bound:
    """What takes most of the estimated time."""
    times: dict[Bound, float] = dict.fromkeys(("arithmetic", "memory", "starts", "link", "disk"), 0.0)
    for segment, taken in zip(plan.segments, cost.segments, strict=True):
        times["arithmetic"] += taken.work / machine.operations
        times["memory"] += _touched(plan.program, segment, taken) / machine.memory
        times["starts"] += taken.starts * machine.start
        times["link"] += (taken.moved - taken.spilled) / machine.link
        times["disk"] += taken.spilled / machine.disk
    return max(times, key=lambda kind: times[kind])


def segment_seconds(program: Program, segment: Segment, cost: SegmentFootprint, machine: Machine) -> float:
    """Of one segment: computing and moving overlap."""
    computing = cost.work / machine.operations + _touched(program, segment, cost) / machine.memory
    moving = (cost.moved - cost.spilled) / machine.link + cost.spilled / machine.disk
    return max(computing + cost.starts * machine.start, moving)


def _touched(program: Program, segment: Segment, cost: SegmentFootprint) -> float:
    """Bytes of the device's memory that are read or written."""
    share = program.own_rows / program.rows if program.ranks else 1
    return share * sum(program.ops[i].bytes for i in segment.body) * cost.recompute + cost.copied
