"""Decode one item: latents on disk to an image or a video."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tvae.pipeline import latents
from tvae.pipeline.errors import InputError, UsageError
from tvae.pipeline.jobs.compute import decode_clip, enough_memory, latents_to_decode
from tvae.pipeline.jobs.context import Context
from tvae.pipeline.jobs.events import Event, ItemDone, ItemSkipped, ItemStarted, Progress
from tvae.pipeline.jobs.existing import picture_serves, reason_to_skip
from tvae.pipeline.jobs.fingerprints import of_decoded
from tvae.pipeline.jobs.geometry import restore
from tvae.pipeline.jobs.memory import Trimmer
from tvae.pipeline.jobs.outputs import Item
from tvae.pipeline.jobs.queues import ahead, behind
from tvae.pipeline.jobs.writing import open_output
from tvae.pipeline.latents import LatentsReader
from tvae.pipeline.media import Frame, SideStreams, tensor_to_frames
from tvae.pipeline.models.hub import is_hub_id
from tvae.pipeline.models.load import BUILTIN

if TYPE_CHECKING:
    from tvae.pipeline.models.model import Model

__all__ = ["decode_item"]


@dataclass
class _Clip:
    """Raw latents ``[C, t, h, w]`` that go through the decoder together, and the times of the frames they give."""

    latents: Tensor
    pts: list[int | None]
    durations: list[int | None]


def decode_item(item: Item, context: Context) -> Event:
    """Writes the item's picture or clip, unless it is there, and returns the item's last event."""
    job, begin = context.job, time.monotonic()
    reader = latents.open_latents(item.source)
    meta = reader.meta
    output = context.claim(item, meta.kind)

    def up_to_date() -> str | None:
        return picture_serves(output, of_decoded(reader, job, _model_of(reader, context)))

    reason = reason_to_skip(output, job.existing, up_to_date)
    if reason:
        return ItemSkipped(item.source, output, reason)
    model = _model_of(reader, context)
    context.emit(ItemStarted(item.source, output, meta.kind, reader.frames))
    audio = None
    if job.audio == "copy" and reader.streams is not None:
        audio = SideStreams.from_json(reader.streams, reader.path)
    done, trimmer = 0, Trimmer()
    with open_output(output, meta.picture, meta.kind, job, audio, of_decoded(reader, job, model)) as writer:
        with (
            ahead(_clips(reader, model), context.queue_frames) as clips,
            behind(writer.write, context.queue_frames) as put,
        ):
            for clip in clips:
                with enough_memory(model):
                    frames = tensor_to_frames(decode_clip(model, clip.latents))
                if len(frames) < len(clip.pts):
                    raise InputError(f"damaged latents: {len(clip.pts)} timestamps for {len(frames)} frames")
                for rgb, pts, duration in zip(frames, clip.pts, clip.durations, strict=False):
                    put(Frame(restore(rgb, meta.geometry), pts, duration))
                    done += 1
                    trimmer.frame()
                context.emit(Progress(item.source, done, reader.frames))
        writer.commit()
    context.notify(item, writer.warnings)
    return ItemDone(item.source, output, done, time.monotonic() - begin)


def _model_of(reader: LatentsReader, context: Context) -> Model:
    """The VAE that was asked for, or else the one that the latents name; that it is not there is their matter.

    InputError, too, when it is not the one that made them. A file is no reason to use the network: a hub id that only
    the latents name is fetched when the user names it as well.
    """
    name = reader.meta.vae.id
    if context.job.vae is None and name != BUILTIN and is_hub_id(name) and not Path(name).is_dir():
        raise InputError(f"was made by the VAE '{name}' of the hub; pass --vae {name} to fetch it, or a local folder")
    try:
        model = context.model_for(context.job.vae or name)
    except UsageError as error:
        if context.job.vae is not None:
            raise
        raise InputError(f"was made by the VAE '{name}', which cannot be opened ({error}); pass --vae") from error
    latents.check_vae(reader, model.info.class_name, model.info.weights_sha256, model.info.id)
    return model


def _clips(reader: LatentsReader, model: Model) -> Iterator[_Clip]:
    """Frame by frame for an image VAE; the whole clip for a video VAE, whose frames hang together."""
    whole: list[_Clip] = []
    for part in reader:
        raw = latents_to_decode(model, part.tensors, reader.meta.space.name)
        if model.info.temporal_factor is not None:
            whole.append(_Clip(raw, *_times(reader, part.pts, part.durations)))
            continue
        pts, durations = _times(reader, part.pts, part.durations)
        for index in range(raw.shape[1]):
            yield _Clip(raw[:, index : index + 1], pts[index : index + 1], durations[index : index + 1])
    if whole:
        yield _Clip(
            torch.cat([clip.latents for clip in whole], dim=1),
            [pts for clip in whole for pts in clip.pts],
            [duration for clip in whole for duration in clip.durations],
        )


def _times(
    reader: LatentsReader, pts: tuple[int | None, ...], durations: tuple[int | None, ...]
) -> tuple[list[int | None], list[int | None]]:
    """An image has one frame and no times."""
    return (list(pts), list(durations)) if reader.meta.kind == "video" else ([None], [None])
