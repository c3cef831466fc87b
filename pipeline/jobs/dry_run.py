"""What a run would do with an item, without doing it. Imports no PyTorch, which takes longer than many files do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvae.pipeline.errors import InputError
from tvae.pipeline.files.checked import open_regular
from tvae.pipeline.files.tar_members import Member
from tvae.pipeline.jobs.cache_names import planned_cache
from tvae.pipeline.jobs.context import Context
from tvae.pipeline.jobs.events import Event, ItemPlanned, ItemSkipped
from tvae.pipeline.jobs.existing import is_there
from tvae.pipeline.jobs.outcome import Outcome
from tvae.pipeline.jobs.outputs import Item
from tvae.pipeline.jobs.reading import blame_input, kind_of
from tvae.pipeline.media.first_bytes import ENOUGH, first_kinds
from tvae.pipeline.media.formats import Kind
from tvae.pipeline.stores import RemoteFile

if TYPE_CHECKING:
    from tvae.pipeline.jobs.cache_plan import CachePlan

__all__ = ["planned"]


def planned(item: Item, context: Context, cached: CachePlan | None = None) -> Outcome:
    """Makes nothing, and decodes what does not tell its kind by its first bytes. cached: of a run that caches."""
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
    kind = _kind_of_latents(item, context) if context.job.operation == "decode" else _kind_of_media(item, context)
    output = context.claim(item, kind)
    with context.standing(output) as there:
        exists = is_there(there)
    if context.job.existing == "keep" and exists:
        return ItemSkipped(item.source, item.index, output, "exists")
    return ItemPlanned(item.source, item.index, output, exists)


def _kind_of_media(item: Item, context: Context) -> Kind:
    """By the first bytes; by the name where these say nothing. A reader is asked where neither tells: it takes as long
    as hundreds of others. InputError, in the words of a run, for a file that cannot be read."""
    kinds = item.kinds
    if len(kinds) == 1 and not isinstance(item.member, RemoteFile):
        with blame_input():
            kinds = first_kinds(_head(item), item.source.suffix) or kinds
    if len(kinds) == 1:
        (kind,) = kinds
        return kind
    return kind_of(item.source, context.job, context.sandbox, item.member)


def _head(item: Item) -> bytes:
    """The first bytes of a file, or of a member of an archive."""
    if not isinstance(item.member, Member):
        with open_regular(item.source) as file:
            return file.read(ENOUGH)
    with open_regular(item.member.archive.path) as file:
        file.seek(item.member.offset)
        return file.read(min(ENOUGH, item.member.size))
