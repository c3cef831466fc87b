"""``--split``: do devices share items, or the rows of each?"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from tvae.pipeline.errors import TvaeError
from tvae.pipeline.jobs.context import Context
from tvae.pipeline.jobs.devices.names import can_share_rows, check_alike
from tvae.pipeline.jobs.input_shape import Extent, input_shape
from tvae.pipeline.jobs.job import Job
from tvae.pipeline.jobs.outputs import Item
from tvae.pipeline.jobs.vaes import Vaes
from tvae.presets import builtin

if TYPE_CHECKING:
    from tvae.pipeline.models.calls import Side
    from tvae.pipeline.session.model import Model
    from tvae.pipeline.session.sharing_pays import AnyPlan, Expected

    ModelFor = Callable[[str], Model]
    Opened = Callable[[ModelFor], Model]

__all__ = ["shares_rows"]

_SIDES: tuple[Side, ...] = ("encode", "decode")
_log = logging.getLogger("tvae")


def shares_rows(job: Job, items: Sequence[Item], devices: Sequence[str], alone: Context) -> bool:
    """Are devices to share the rows of each item? Raises UsageError where they are and cannot.

    ``auto``: where there are fewer items than devices, and it is sooner done. alone: of the same job on the first
    device, to plan with; where the only item is then computed there, nothing of that is done twice.
    """
    if job.split == "rows" and len(devices) > 1:
        check_alike(devices)
        return True
    if job.split != "auto" or job.operation == "cache" or not 0 < len(items) < len(devices):
        return False
    if not can_share_rows(devices):
        return False
    try:
        found = _expected(items, alone, len(devices))
    except TvaeError as error:  # whoever does the item finds it, too, and says whose failure it is
        _log.info("--split auto: whole items (%s)", error)
        return False
    _log.info("--split auto: %s (%s)", "rows of each item" if found.pays else "whole items", found)
    return found.pays


def _expected(items: Sequence[Item], alone: Context, devices: int) -> Expected:
    """Of all items. Raises what is wrong with any."""
    from tvae.pipeline.session.planned_peers import PlannedPeers
    from tvae.pipeline.session.shared_model import SharedModel
    from tvae.pipeline.session.sharing_pays import expected, expected_of_all

    job, peers = alone.job, PlannedPeers(0, devices)
    shared = Vaes(job, kind_of=lambda _: partial(SharedModel, peers=peers))
    sides: list[Side] = [side for side in _SIDES if job.operation in (side, "roundtrip")]
    found = []
    for opened, extent in [_opened(item, alone) for item in items if item.problem is None]:
        info = opened(alone.facts_for).info

        def plan(model_for: ModelFor, side: Side, opened: Opened = opened, extent: Extent = extent) -> AnyPlan:
            model = opened(model_for)
            return model.plan(input_shape(model.info, extent, side), side)

        calls = [(partial(plan, alone.model_for, side), partial(plan, shared.get, side)) for side in sides]
        times = extent.frames if info.temporal_factor is None else 1  # frames go through an image VAE one by one
        found.append(expected(calls, devices, times, several=len(items) > 1, quick=True))
    return expected_of_all(found, devices)


def _opened(item: Item, context: Context) -> tuple[Opened, Extent]:
    """What opens its VAE, and the size that goes into that. A clip that does not say how many frames it has counts as
    one frame."""
    from tvae.pipeline.jobs.decode_clip import model_of
    from tvae.pipeline.jobs.other_programs import opened_latents
    from tvae.pipeline.jobs.reading import open_source

    job = context.job
    if job.operation == "decode":
        reader = opened_latents(item, context)
        width, height = reader.meta.geometry.padded_size
        return partial(model_of, reader, job), Extent(height, width, reader.frames)
    vae = job.vae or builtin.NAME
    factor = context.facts_for(vae).info.spatial_factor
    with open_source(item.source, job, factor, context.sandbox, member=item.member) as source:
        width, height = source.geometry.padded_size
        return lambda opened: opened(vae), Extent(height, width, source.reader.info.frames or 1)
