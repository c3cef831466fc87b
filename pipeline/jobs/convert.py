"""Latents from one file into another: tvae's own and those of other programs, raw and model space."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tvae.pipeline import latents
from tvae.pipeline.errors import InputError, UsageError
from tvae.pipeline.files.atomic import write_error
from tvae.pipeline.files.checked import open_regular
from tvae.pipeline.jobs.describe import identity
from tvae.pipeline.jobs.job import Job, Space
from tvae.pipeline.jobs.other_programs import opened_alone
from tvae.pipeline.latents import LatentsMeta, LatentsPart, LatentsReader, SpaceRecord
from tvae.pipeline.latents.foreign import SUFFIXES, WRITTEN, write_foreign
from tvae.pipeline.latents.tensor_file import is_ours
from tvae.pipeline.models.latent_space import LatentSpace

if TYPE_CHECKING:
    from tvae.pipeline.jobs.vaes import Vaes
    from tvae.pipeline.session.model_info import Known

__all__ = ["convert", "in_space", "joined", "opened", "suits", "write_latents"]


def convert(
    source: Path, target: Path, job: Job, vaes: Vaes, to: Space | None, *, overwrite: bool = False
) -> list[str]:
    """Write what one file holds into another, whose name tells its form. Returns lines on what that has no room for.

    job: a decode job whose ``vae``, ``latents_space``, ``latents_key`` and ``size`` say what another program's file
    does not; latents of tvae are those of its ``vae``, or, with ``allow_other_vae``, are taken for them. to: space of
    the values that are written; None: raw in ComfyUI's files, else that of the source. Raises UsageError before
    anything is written, InputError for what is damaged, OutputError.
    """
    if target.exists() and not overwrite:
        raise UsageError(f"{target} exists; --overwrite replaces it")
    if target.exists() and target.samefile(source):
        raise UsageError(f"{target} is the source itself; name another file")
    suits(target, None)
    reader = opened(source, job, vaes)
    suits(target, reader.meta)
    space = to or ("raw" if target.suffix.lower() == ".latent" else reader.meta.space.name)
    model = None if job.vae is None else vaes.facts(job.vae)
    if model is not None:
        latents.check_vae(reader, identity(model), other=job.allow_other_vae)
    parts, meta = [*reader], reader.meta
    if model is not None and not latents.same_vae(meta.vae, identity(model)):
        parts, meta = _in_space(parts, meta, "raw"), _of_other(meta, model)
    parts = _in_space(parts, meta, space)
    meta = replace(meta, space=replace(meta.space, name=space))
    write_latents(target, parts, meta, streams_of=reader, overwrite=overwrite)
    return _lost(reader, parts) if target.suffix.lower() in WRITTEN else []


def _of_other(meta: LatentsMeta, model: Known) -> LatentsMeta:
    """Of the same raw latents, as if this VAE had made them. Their fingerprint tells them from its own."""
    record, made_by = SpaceRecord("raw", model.info.space.to_json()), meta.vae.weights_sha256
    return replace(meta, vae=identity(model), space=record, options={**meta.options, "made_by": made_by})


def suits(target: Path, meta: LatentsMeta | None) -> None:
    """Raises UsageError for a name that tells no form of latents, or not that of these (None: any)."""
    suffix = target.suffix.lower()
    ours = (latents.IMAGE_SUFFIX, latents.VIDEO_SUFFIX)
    if suffix not in (*ours, *WRITTEN):
        raise UsageError(
            f"latents cannot be written to {target}; its name has to end in {', '.join((*ours, *WRITTEN))}"
        )
    if meta is None or suffix in WRITTEN:
        return
    wanted = latents.VIDEO_SUFFIX if meta.kind == "video" else latents.IMAGE_SUFFIX
    if suffix != wanted:
        what = "a video" if meta.kind == "video" else "an image"
        raise UsageError(f"latents of {what} are not written to {target}; its name has to end in {wanted}")


def write_latents(
    target: Path,
    parts: list[LatentsPart],
    meta: LatentsMeta,
    *,
    streams_of: LatentsReader | None = None,
    overwrite: bool = False,
) -> None:
    """Under a name that ``suits``, in one step. streams_of: whose sound and so on to copy. Raises as ``convert``."""
    suffix = target.suffix.lower()
    if suffix in WRITTEN:
        write_foreign(target, joined(parts, meta))
    elif suffix == latents.IMAGE_SUFFIX:
        (part,) = parts
        alpha = None if part.alpha is None else latents.alpha_text(part.alpha)
        if part.alpha is not None and alpha is None:
            raise InputError(f"{target}: the picture's alpha is too large to be kept beside its latents")
        latents.write_image_latents(
            target, joined(parts, meta), meta, repeated=part.repeated, alpha=alpha, overwrite=overwrite
        )
    else:
        _write_clip(target, parts, meta, streams_of, overwrite)


def in_space(tensors: dict[str, Tensor], space: LatentSpace, old: Space, new: Space) -> dict[str, Tensor]:
    """``latents``, or ``mean`` and ``logvar``, each [C, ..., h, w], from one space to another."""
    if old == new:
        return tensors
    ways = (space.to_model, space.logvar_to_model) if new == "model" else (space.to_raw, space.logvar_to_raw)
    return {name: ways[name == "logvar"](value.unsqueeze(0))[0] for name, value in tensors.items()}


def _in_space(parts: list[LatentsPart], meta: LatentsMeta, new: Space) -> list[LatentsPart]:
    """The whole at once: there are VAEs with constants for each latent frame."""
    old = meta.space.name
    if old == new:
        return parts
    try:
        space = LatentSpace.from_json(meta.space.constants)
    except ValueError as error:
        raise InputError(f"the latents do not say how their VAE scales them: {error}") from error
    if len(parts) == 1:
        return [replace(parts[0], tensors=in_space(parts[0].tensors, space, old, new))]
    names = [*parts[0].tensors]
    lengths = [part.tensors[names[0]].shape[1] for part in parts]
    whole = joined(parts, meta)
    cut = {name: value.split(lengths, 1) for name, value in in_space(whole, space, old, new).items()}
    return [replace(part, tensors={name: cut[name][n] for name in names}) for n, part in enumerate(parts)]


def joined(parts: Sequence[LatentsPart], meta: LatentsMeta) -> dict[str, Tensor]:
    """All parts as one: [C, t, h, w] of a clip, or of a picture through a video VAE, else [C, h, w]."""
    found = parts[0].tensors
    if len(parts) > 1:
        found = {name: torch.cat([part.tensors[name] for part in parts], 1) for name in found}
    if meta.kind == "video" or meta.vae.temporal_factor is not None:
        return found
    return {name: value.squeeze(1) if value.ndim == 4 else value for name, value in found.items()}


def opened(source: Path, job: Job, vaes: Vaes) -> LatentsReader:
    """The latents in a file, tvae's or another program's; see ``convert``. Raises UsageError where a file of another
    program needs to be told what it holds, InputError."""
    if source.is_dir() or source.name == "index.json" or is_ours(source):
        return latents.open_latents(source)
    if source.suffix.lower() not in SUFFIXES:
        raise UsageError(f"{source} is no latents: they are folders, or files ending in {', '.join(SUFFIXES)}")
    try:
        open_regular(source).close()  # or what cannot be read would seem to be another program's
    except OSError as error:
        raise InputError(f"cannot read latents '{source}': {error.strerror or error}") from error
    if job.latents_space is None or job.vae is None:
        raise UsageError(f"{source} does not say which VAE and space it is of: pass --vae and --space raw|model")
    return opened_alone(source, job, vaes.facts(job.vae))


def _write_clip(
    target: Path, parts: list[LatentsPart], meta: LatentsMeta, streams_of: LatentsReader | None, overwrite: bool
) -> None:
    with latents.VideoLatentsWriter(target, meta, overwrite=overwrite) as writer:
        for part in parts:
            writer.add(part.tensors, part.pts, part.durations, part.repeated)
        record = None if streams_of is None else streams_of.streams
        if streams_of is not None and record is not None:
            streams_of.check_streams()
            try:
                for name in streams_of.stream_files:
                    shutil.copyfile(streams_of.path / name, writer.streams_stem.with_name(name))
            except OSError as error:
                raise write_error(target, error) from error
        writer.commit(record, 0 if streams_of is None else streams_of.dropped)


def _lost(reader: LatentsReader, parts: list[LatentsPart]) -> list[str]:
    """What files of values alone leave out."""
    kinds = {
        "the sound and other streams": bool(reader.streams and reader.streams.get("streams")),
        "the frames' times": reader.meta.kind == "video" and reader.meta.source.name != reader.path.name,
        "the picture's alpha": parts[0].alpha is not None,
        "which part of the picture is padding": any(reader.meta.geometry.pad),
    }
    lost = [name for name, there in kinds.items() if there]
    return [f"the file holds the values alone, not {' nor '.join(lost)}"] if lost else []
