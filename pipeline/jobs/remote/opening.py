"""Latents that are to be decoded, opened where they are or as a copy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tvae.pipeline import latents
from tvae.pipeline.errors import InputError
from tvae.pipeline.files.staging import scratch_folder
from tvae.pipeline.jobs.context import Context
from tvae.pipeline.jobs.other_programs import opened_latents
from tvae.pipeline.jobs.outputs import Item
from tvae.pipeline.jobs.remote.fetching import local_copy
from tvae.pipeline.jobs.remote.stand_ins import stand_in
from tvae.pipeline.latents import LatentsReader
from tvae.pipeline.stores import RemoteFile, StoreError

__all__ = ["head_of_any_latents", "head_of_latents", "latents_to_read"]


@contextmanager
def latents_to_read(item: Item, context: Context, *, waits: bool) -> Iterator[LatentsReader]:
    """An item's latents. waits: see ``local_copy``. Raises InputError."""
    if not isinstance(item.member, RemoteFile):
        yield opened_latents(item, context)
        return
    with ExitStack() as stack:
        copy = stack.enter_context(local_copy(item.member, context.job.spill, waits=waits))
        with _said_of(item, copy):
            yield latents.open_latents(copy)


@contextmanager
def head_of_any_latents(item: Item, context: Context) -> Iterator[LatentsReader]:
    """What an item's latents say of themselves, wherever they are. Raises InputError."""
    if isinstance(item.member, RemoteFile):
        with head_of_latents(item, item.member, context) as reader:
            yield reader
    else:
        yield opened_latents(item, context)


@contextmanager
def head_of_latents(item: Item, member: RemoteFile, context: Context) -> Iterator[LatentsReader]:
    """What the latents say of themselves, without their values, which are not fetched."""
    with scratch_folder(context.job.spill) as folder:
        copy = folder / member.name
        with _said_of(item, copy):
            try:
                inside = member.store.inside(member.place.key) if member.is_folder else [member]
            except StoreError as error:
                raise InputError(str(error)) from error
            stand_in(inside, copy)
            yield latents.open_latents(copy)


@contextmanager
def _said_of(item: Item, copy: Path) -> Iterator[None]:
    """What is wrong with a copy is said of the item."""
    try:
        yield
    except InputError as error:
        raise InputError(str(error).replace(str(copy), str(item.source))) from error
