"""Latents that other programs wrote: which of them a file holds, and what the user said they are of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from tvae.pipeline import latents
from tvae.pipeline.errors import InputError
from tvae.pipeline.jobs.describe import identity
from tvae.pipeline.jobs.found import Found
from tvae.pipeline.jobs.job import Job
from tvae.pipeline.jobs.lengths import frame_count
from tvae.pipeline.latents import LatentsReader, SpaceRecord
from tvae.pipeline.latents.foreign import SUFFIXES, ForeignLatents, Wanted, foreign_latents, open_foreign
from tvae.pipeline.latents.tensor_file import is_ours

if TYPE_CHECKING:
    from tvae.pipeline.jobs.context import Context
    from tvae.pipeline.jobs.outputs import Item
    from tvae.pipeline.session.model import Model
    from tvae.pipeline.session.model_info import ModelInfo

__all__ = ["name_of_foreign", "opened_alone", "opened_latents", "told_apart"]

_RATE = Fraction(24)
"""Pictures a second of a clip, where ``--fps`` does not say."""


def told_apart(found: Iterable[Found], job: Job, facts: Callable[[str], Model]) -> list[Found]:
    """Files of other programs, once for each image and clip in them. One that cannot be read is a problem."""
    return [each for one in found for each in _members(one, job, facts)]


def _members(found: Found, job: Job, facts: Callable[[str], Model]) -> Iterator[Found]:
    path = found.path
    if found.problem is not None or path.suffix.lower() not in SUFFIXES or path.is_dir() or is_ours(path):
        yield found
        return
    assert job.vae is not None, "a job has none without --space"
    try:
        members = foreign_latents(path, job.latents_key, _wanted(job, facts(job.vae).info))
    except InputError as error:
        yield replace(found, problem=str(error))
        return
    for member in members:
        yield replace(found, foreign=member)


def name_of_foreign(found: ForeignLatents) -> str:
    """What its output is called: after the file, with a number where that holds several."""
    return found.path.stem + (f"-{found.number:04d}" if found.count > 1 else "")


def opened_latents(item: Item, context: Context) -> LatentsReader:
    """An item's latents, of tvae or of another program. Raises InputError."""
    if item.foreign is None:
        return latents.open_latents(item.source)
    job = context.job
    assert job.vae is not None, "a job has none without --space"
    model = context.facts_for(job.vae)
    frames = frame_count(model.info, item.foreign.frames, True)
    return open_foreign(item.foreign, identity(model), _space(job, model.info), frames, job.fps or _RATE)


def opened_alone(path: Path, job: Job, model: Model) -> LatentsReader:
    """Of a file of another program that holds one image or clip. Raises InputError."""
    members = foreign_latents(path, job.latents_key, _wanted(job, model.info))
    if len(members) != 1:
        raise InputError(f"'{path}' holds {len(members)} images or clips; one at a time can be converted")
    frames = frame_count(model.info, members[0].frames, True)
    return open_foreign(members[0], identity(model), _space(job, model.info), frames, job.fps or _RATE)


def _wanted(job: Job, info: ModelInfo) -> Wanted:
    patch, grid = _space(job, info).patch if job.latents_space == "model" else 1, None
    if job.size is not None:
        grid = job.size[0] // (info.spatial_factor * patch), job.size[1] // (info.spatial_factor * patch)
    return Wanted(info.latent_channels * patch**2, info.temporal_factor is not None, grid)


def _space(job: Job, info: ModelInfo) -> SpaceRecord:
    assert job.latents_space is not None, "asked for latents of other programs alone"
    return SpaceRecord(job.latents_space, info.space.to_json())
