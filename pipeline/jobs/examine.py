"""What an item is in for, exactly: its output is new, outdated (and why) or done already, or it cannot be read.

PyTorch is imported for the first output that is there to be compared, or decoded from, and not for what is new.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from tvae.pipeline import latents
from tvae.pipeline.errors import InputError
from tvae.pipeline.files.atomic import check_place, check_readable
from tvae.pipeline.jobs.cache_names import planned_cache
from tvae.pipeline.jobs.context import Context
from tvae.pipeline.jobs.describe import encode_options, identity, kept_posterior
from tvae.pipeline.jobs.events import Event, ItemPlanned
from tvae.pipeline.jobs.existing import DONE_ALREADY, is_there, picture_serves, skipped
from tvae.pipeline.jobs.fingerprints import of_decoded, of_encoded, of_reconstructed
from tvae.pipeline.jobs.job import Job
from tvae.pipeline.jobs.outputs import Item
from tvae.pipeline.jobs.reading import blame_input, kind_of
from tvae.pipeline.jobs.remote.opening import head_of_any_latents
from tvae.pipeline.latents import SourceRecord
from tvae.pipeline.media.formats import Kind
from tvae.pipeline.media.probe import check_file
from tvae.pipeline.stores import RemoteFile
from tvae.presets import builtin

if TYPE_CHECKING:
    from tvae.pipeline.jobs.cache_plan import CachePlan
    from tvae.pipeline.session.model import Model

__all__ = ["examined"]

_OTHERWISE = "it was made of another source, or with another VAE or other options"


def examined(item: Item, context: Context, cached: CachePlan | None = None) -> Event:
    """Makes nothing and changes nothing. cached: of a run that caches. Raises InputError for an item that cannot be
    read, as far as that shows without decoding it, and InputError or OutputError where something is in its output's
    place that is not to be replaced."""
    with blame_input():
        if cached is not None:
            return _cached(item, context, cached)
        if context.job.operation == "decode":
            return _decoded(item, context)
        return _made_of_media(item, context)


def _made_of_media(item: Item, context: Context) -> Event:
    """In the order of ``look_up``, so that the same items are skipped, for the same reasons."""
    job, vae = context.job, context.job.vae or builtin.NAME

    def serves(output: Path, kind: Kind) -> str | None:
        model = context.facts_for(vae)
        if job.operation == "encode":
            if latents.latents_done(output, of_encoded(item.origin(), kind, job, model)):
                return DONE_ALREADY
            check_readable(output)
            return None
        return picture_serves(output, of_reconstructed(item.origin(), kind, job, model))

    if (skip := skipped(item, context, serves)) is not None:
        return skip
    kind = _kind(item, context)
    output = context.claim(item, kind)
    if item.kinds != {kind} and (skip := skipped(item, context, serves, kind)) is not None:
        return skip
    _check_place(output, kind, context)
    if job.operation == "encode" and job.existing == "skip" and is_there(output):
        return _planned(item, output, _why_latents(output, item.origin(), kind, context, context.facts_for(vae)))
    return _planned(item, output, _why(output, job))


def _kind(item: Item, context: Context) -> Kind:
    """By content; of what is no image for Pillow FFmpeg is asked, which takes longer."""
    if isinstance(item.member, RemoteFile) and len(item.kinds) == 1:
        (kind,) = item.kinds  # which is not fetched for it
        return kind
    path = item.source.absolute()
    if item.member is None and not context.sandbox.takes(path) and check_file(path, context.job.max_pixels):
        return "image"
    return kind_of(item.source, context.job, context.sandbox, item.member)


def _decoded(item: Item, context: Context) -> Event:
    from tvae.pipeline.jobs.decode_clip import model_of

    job = context.job
    with head_of_any_latents(item, context) as reader:
        kind = reader.meta.kind
        output = context.claim(item, kind)
        fingerprint = of_decoded(reader, job, model_of(reader, job, context.facts_for))
    skip = skipped(item, context, lambda output, _kind: picture_serves(output, fingerprint), kind)
    if skip is not None:
        return skip
    _check_place(output, kind, context)
    return _planned(item, output, _why(output, job))


def _check_place(output: Path, kind: Kind, context: Context) -> None:
    """InputError or OutputError where what is there is not to be replaced, in the words of a run. What is in a store
    shows when the output is sent."""
    job = context.job
    if context.uploads is not None or not os.path.lexists(output):
        return
    if job.operation != "encode":
        check_place(output)
    elif kind == "image":
        latents.check_image_place(output, overwrite=job.existing == "overwrite")
    else:
        latents.check_folder_place(output, overwrite=False)  # no option takes over a folder that is not ours


def _cached(item: Item, context: Context, cached: CachePlan) -> Event:
    planned = planned_cache(item, context, cached)
    if not isinstance(planned, ItemPlanned):
        return planned
    record = cached.own(item).record
    cached.check_own(planned.output, record)
    return _planned(item, planned.output, _why(record, context.job))


def _why(there: Path, job: Job) -> str | None:
    """What is there is made anew; None: nothing is. there: an output or a cache's record."""
    if not is_there(there):
        return None
    return "it is to be overwritten" if job.existing == "overwrite" else _OTHERWISE


def _planned(item: Item, output: Path, why: str | None) -> ItemPlanned:
    state = "new" if why is None else "outdated"
    return ItemPlanned(item.source, item.index, output, why is not None, state, why)


def _why_latents(output: Path, source: SourceRecord, kind: Kind, context: Context, model: Model) -> str:
    """Of latents that do not serve."""
    job = context.job
    try:
        meta = latents.open_latents(output).meta
    except InputError as error:
        return f"it is damaged: {error}"
    vae = identity(model)
    if meta.source != source:
        return "its source has changed"
    if (meta.vae.class_name, meta.vae.weights_sha256) != (vae.class_name, vae.weights_sha256):
        return f"another VAE made it: '{meta.vae.id}'"
    if meta.vae.config_sha256 != vae.config_sha256:
        return "the configuration of its VAE has changed"
    said = {
        "dtype": (meta.dtype, str(model.dtype).removeprefix("torch.")),
        "space": (meta.space.name, job.space),
        "posterior": (meta.posterior, kept_posterior(job, model)),
        **_pairs(meta.options, encode_options(job, kind)),
    }
    changed = [name for name, (was, wanted) in said.items() if was != wanted]
    return f"it was made with another {', '.join(changed)}" if changed else _OTHERWISE


def _pairs(were: dict[str, object], wanted: dict[str, object]) -> dict[str, tuple[object, object]]:
    """Options as JSON has them, before and now."""
    now = {name: [*value] if isinstance(value, tuple) else value for name, value in wanted.items()}
    return {name: (were.get(name), now.get(name)) for name in {**were, **now}}
