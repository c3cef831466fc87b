"""What a run would do with an item, without doing it. Imports no PyTorch, which takes longer than many files do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvae.pipeline.errors import InputError
from tvae.pipeline.jobs.cache_names import planned_cache
from tvae.pipeline.jobs.context import Context
from tvae.pipeline.jobs.events import Event, ItemPlanned, ItemSkipped
from tvae.pipeline.jobs.existing import is_there
from tvae.pipeline.jobs.outcome import Outcome
from tvae.pipeline.jobs.outputs import Item
from tvae.pipeline.jobs.reading import kind_of
from tvae.pipeline.media.formats import Kind

if TYPE_CHECKING:
    from tvae.pipeline.jobs.cache_plan import CachePlan

__all__ = ["planned"]


def planned(item: Item, context: Context, cached: CachePlan | None = None) -> Outcome:
    """Makes nothing, and opens what does not tell its kind by its name alone. cached: of a run that caches."""
    try:
        if item.problem is not None:
            return InputError(item.problem)
        if context.job.exact:
            from tvae.pipeline.jobs.examine import examined

            return examined(item, context, cached)
        return _plan(item, context) if cached is None else planned_cache(item, context, cached)
    except Exception as error:  # the tally knows whose failure it is
        return error


def _kind_of_latents(item: Item, context: Context) -> Kind:
    from tvae.pipeline.jobs.remote.opening import head_of_any_latents

    with head_of_any_latents(item, context) as reader:
        return reader.meta.kind


def _plan(item: Item, context: Context) -> Event:
    if context.job.operation == "decode":
        kind = _kind_of_latents(item, context)
    elif len(item.kinds) == 1:
        _look_at(item)
        (kind,) = item.kinds
    else:
        kind = kind_of(item.source, context.job, context.sandbox, item.member)
    output = context.claim(item, kind)
    with context.standing(output) as there:
        exists = is_there(there)
    if context.job.existing == "keep" and exists:
        return ItemSkipped(item.source, item.index, output, "exists")
    return ItemPlanned(item.source, item.index, output, exists)


def _look_at(item: Item) -> None:
    """InputError, in the words of a run, for a file that is not there."""
    try:
        item.origin()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}") from error
