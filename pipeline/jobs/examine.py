"""What an item is in for, exactly: its output is new, outdated (and why) or done already, or it cannot be read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tvae.pipeline import latents, media
from tvae.pipeline.errors import InputError
from tvae.pipeline.jobs.cache_names import planned_cache
from tvae.pipeline.jobs.context import Context
from tvae.pipeline.jobs.decode_clip import model_of
from tvae.pipeline.jobs.describe import encode_options, identity, kept_posterior
from tvae.pipeline.jobs.events import Event, ItemPlanned, ItemSkipped
from tvae.pipeline.jobs.existing import DONE_ALREADY, is_there
from tvae.pipeline.jobs.fingerprints import of_decoded, of_encoded, of_reconstructed
from tvae.pipeline.jobs.other_programs import opened_latents
from tvae.pipeline.jobs.outputs import Item
from tvae.pipeline.jobs.reading import blame_input, kind_of
from tvae.pipeline.latents import SourceRecord
from tvae.pipeline.media.formats import Kind
from tvae.pipeline.media.probe import check_file
from tvae.pipeline.models.load import BUILTIN

if TYPE_CHECKING:
    from tvae.pipeline.jobs.cache_plan import CachePlan
    from tvae.pipeline.session.model import Model

__all__ = ["examined"]

_OTHERWISE = "it was made of another source, or with another VAE or other options"


def examined(item: Item, context: Context, cached: CachePlan | None = None) -> Event:
    """Makes nothing and changes nothing. cached: of a run that caches. Raises InputError for an item that cannot be
    read, as far as that shows without decoding it."""
    with blame_input():
        if cached is not None:
            return _cached(item, context, cached)
        if context.job.operation == "decode":
            return _decoded(item, context)
        return _made_of_media(item, context)


def _made_of_media(item: Item, context: Context) -> Event:
    job, model = context.job, context.facts_for(context.job.vae or BUILTIN)
    (kind,) = item.kinds if len(item.kinds) == 1 else (kind_of(item.source, job, context.sandbox),)
    output = context.claim(item, kind)
    if is_there(output) and job.existing != "overwrite":
        if job.existing == "keep":
            return ItemSkipped(item.source, item.index, output, "exists")
        if job.operation == "encode":
            why = _why_latents(output, item.source, kind, context, model)
        else:
            why = _why_picture(output, of_reconstructed(item.source, kind, job, model))
        if why is None:
            return ItemSkipped(item.source, item.index, output, DONE_ALREADY)
    else:
        why = "it is to be overwritten" if is_there(output) else None
    if not check_file(item.source.absolute(), job.max_pixels):  # FFmpeg is asked, which takes longer
        kind_of(item.source, job, context.sandbox)
    return _planned(item, output, why)


def _decoded(item: Item, context: Context) -> Event:
    job, reader = context.job, opened_latents(item, context)
    output = context.claim(item, reader.meta.kind)
    model, why = model_of(reader, job, context.facts_for), None
    if is_there(output):
        if job.existing == "keep":
            return ItemSkipped(item.source, item.index, output, "exists")
        why = "it is to be overwritten"
        if job.existing == "skip":
            why = _why_picture(output, of_decoded(reader, job, model))
            if why is None:
                return ItemSkipped(item.source, item.index, output, DONE_ALREADY)
    return _planned(item, output, why)


def _cached(item: Item, context: Context, cached: CachePlan) -> Event:
    planned = planned_cache(item, context, cached)
    if isinstance(planned, ItemPlanned) and (planned.exists or item.record.exists()):
        return _planned(item, planned.output, _OTHERWISE)
    return _planned(item, planned.output, None) if isinstance(planned, ItemPlanned) else planned


def _planned(item: Item, output: Path, why: str | None) -> ItemPlanned:
    state = "new" if why is None else "outdated"
    return ItemPlanned(item.source, item.index, output, why is not None, state, why)


def _why_latents(output: Path, source: Path, kind: Kind, context: Context, model: Model) -> str | None:
    job = context.job
    if latents.latents_done(output, of_encoded(source, kind, job, model)):
        return None
    try:
        meta = latents.open_latents(output).meta
    except InputError as error:
        return f"it is damaged: {error}"
    vae = identity(model)
    if meta.source != SourceRecord.of(source):
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


def _why_picture(output: Path, fingerprint: str) -> str | None:
    found = media.read_fingerprint(output)
    if found is None:
        return None  # it may be the user's own, and a run leaves it
    return None if found == fingerprint else _OTHERWISE
