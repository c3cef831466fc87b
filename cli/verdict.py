"""What a plan comes to, in a few lines: does it fit, how long it takes, and what bounds it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tvae.pipeline.engine.plan.report import Plan
    from tvae.pipeline.session.clip_plan import ClipPlan
    from tvae.pipeline.session.model import Model

__all__ = ["LEGEND", "share_of_rows", "shared_verdict", "verdict"]

_BOUND = {
    "arithmetic": "the device's arithmetic",
    "memory": "the device's memory",
    "starts": "starting many small operations",
    "link": "moving buffers to the host and back",
    "disk": "moving buffers to the disk and back",
}

LEGEND = """\
ends with   what ends the segment: buffers that are kept, or an operation that needs every row (whole read, statistics)
strips      bands of rows, one after the other (AxB: A strips of frames, each in B bands of rows)
halo        rows beyond its own that a strip reads of the buffer that needs most
work        rows computed for every row of the result
stored      buffers on the device while the segment runs; strip: what the fullest strip takes beside them
alive       the segments in which a buffer exists"""


def verdict(plan: Plan | ClipPlan, model: Model) -> Iterator[str]:
    """Lines. Raises PlanError where buffers do not fit on the disk that they would go to."""
    from tvae.pipeline.engine.plan.report import size_text, time_text
    from tvae.pipeline.memory.disk_room import disk_room

    shape = "x".join(map(str, plan.input_shape))
    yield f"{plan.side} {shape}: fits in {_room(model)}"
    peak = f"{size_text(plan.peak_bytes)} of activations beside {size_text(plan.weight_bytes)} of weights"
    yield f"  memory  {peak}; --vram {-(-plan.least_budget // 2**20)}MiB would do"
    yield f"  time    about {time_text(plan.seconds)}, bound by {_BOUND[plan.bound]}"
    if plan.host_bytes:
        yield f"  host    {size_text(plan.host_bytes)} of buffers in the host's memory"
    if plan.disk_bytes:
        folder, free = disk_room(plan.disk_bytes, model.limits.spill, f"{plan.side} {shape}")
        yield f"  disk    {size_text(plan.disk_bytes)} of buffers in {folder}, where {size_text(free)} are free"
    for one in plan.whole:
        yield f"  whole   {one}: exact, but in more memory than strips"


def shared_verdict(plans: Sequence[Plan | ClipPlan]) -> str:
    """A line on a call that devices share, from the plan of each."""
    from tvae.pipeline.engine.plan.report import size_text

    first = plans[0]
    shape, used = "x".join(map(str, first.input_shape)), len(_parts(first)[0][1].bands)
    over = f"over {used} devices" if used == len(plans) else f"over {used} of {len(plans)} devices"
    if not used:
        return f"{first.side} {shape}: cannot be shared by rows; each of {len(plans)} devices would do all of it"
    total = sum(count * part.received_bytes for plan in plans[:used] for count, part in _parts(plan))
    each = "" if _parts(first)[0][1] is first else " in all its steps"
    return f"{first.side} {shape} {over}: {size_text(total)} pass between them{each}"


def share_of_rows(device: str, plan: Plan | ClipPlan) -> str:
    """A line on the part of one device."""
    from tvae.pipeline.engine.plan.report import size_text

    parts = _parts(plan)
    bands, rank = parts[0][1].bands, parts[0][1].rank
    peak = f"{size_text(plan.peak_bytes)} of activations beside {size_text(plan.weight_bytes)} of weights"
    if not bands:
        return f"  {device:<8} all rows; {peak}"
    if rank >= len(bands):
        return f"  {device:<8} no rows"
    lo, hi = bands[rank]
    halo = max(part.halo_rows for _, part in parts)
    comes = size_text(sum(count * part.received_bytes for count, part in parts))
    of = parts[0][1].bands_of
    return f"  {device:<8} {of} {lo} to {hi - 1} of {bands[-1][1]}; halo up to {halo} {of}, {comes} come; {peak}"


def _parts(plan: Plan | ClipPlan) -> list[tuple[int, Plan]]:
    """How often each of its plans is run."""
    from tvae.pipeline.session.clip_plan import ClipPlan

    return [(step.count, step.plan) for step in plan.steps] if isinstance(plan, ClipPlan) else [(1, plan)]


def _room(model: Model) -> str:
    """What a run may take."""
    from tvae.pipeline.engine.plan.report import size_text
    from tvae.pipeline.memory.limits import free_bytes

    if model.limits.vram is not None:
        return f"the budget of {size_text(model.limits.vram)}"
    free = free_bytes(model.device)
    return f"what is free on {model.device}" + ("" if free is None else f" ({size_text(free)})")
