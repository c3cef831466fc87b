"""The clip that a trainer takes of a video: read as it reads it, and encoded."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from tvae.pipeline.caches import Subject
from tvae.pipeline.caches.resize import framed
from tvae.pipeline.caches.shards.record import OriginRecord
from tvae.pipeline.caches.spec import Piece
from tvae.pipeline.caches.tables.videos import chosen, is_same_rate
from tvae.pipeline.errors import InputError
from tvae.pipeline.files.content_checksum import of_file
from tvae.pipeline.jobs.busy import CLIP, CLIP_READ, CLIP_WRITE
from tvae.pipeline.jobs.cache_clip import encoded, stored, told_of
from tvae.pipeline.jobs.cache_draw import generator_of
from tvae.pipeline.jobs.cache_plan import CachePlan
from tvae.pipeline.jobs.clips import ClipRun
from tvae.pipeline.jobs.context import Context
from tvae.pipeline.jobs.events import ItemDone, ItemStarted
from tvae.pipeline.jobs.outcome import Finished
from tvae.pipeline.jobs.outputs import Item
from tvae.pipeline.jobs.reading import blame_input, state_of
from tvae.pipeline.jobs.scaling_room import room_to_scale
from tvae.pipeline.media.comfyui_frames import frames_at, read_header, whole_count
from tvae.pipeline.models.load import BUILTIN

__all__ = ["read_and_encoded"]

_BEGINNING = "single_beginning"


def read_and_encoded(
    item: Item,
    context: Context,
    plan: CachePlan,
    length: int,
    stage: Callable[[Item, Subject, Tensor, OriginRecord], None],
) -> ClipRun:
    """length: frames of the clip. stage: is given its latents, [C, t, h, w]. Which frames it has is known before it is
    the clip's turn to compute; they are read then, one after the other, and held in the size of the bucket."""
    assert item.below is not None, "an item of a cache has a place"
    with blame_input():
        opened_as = state_of(item.source)
        if context.sandbox.takes(item.source):  # a decoder that crashes does it there
            context.sandbox.count_frames(item.source, context.job.max_pixels)
        numbers = _numbers(item.source, plan, length, context.job.max_pixels)
    yield
    begin, shown = time.monotonic(), plan.root
    model = context.model_for(context.job.vae or BUILTIN)
    context.emit(ItemStarted(item.source, item.index, shown, "video", length))
    pictures, size, framing = [], None, None
    with blame_input():
        for pixels in context.busy.during(CLIP_READ, frames_at(item.source, numbers, context.job.max_pixels)):
            size = size or (pixels.shape[1], pixels.shape[0])
            framing = framing or plan.framing(size)
            with room_to_scale(item.source, size, framing.resized, framing.filter, context.job):
                pictures.append(framed(pixels, framing))
    assert size is not None
    assert framing is not None
    fps = plan.architecture.fps
    assert fps is not None, "only models of videos have clips"
    subject = Subject(item.below, size, framing, plan.architecture, Piece(numbers[0], length, fps))
    tell = told_of(item, context, 0, length)
    with context.busy.at(CLIP):
        latents = stored(encoded(model, pictures, tell), model, plan, generator_of(subject, context.job.seed))
    with context.busy.at(CLIP_WRITE):
        stage(item, subject, latents, OriginRecord(item.origin(), of_file(item.source)))
    tell(length)
    yield
    with blame_input():
        if state_of(item.source) != opened_as:
            raise InputError("it changed while it was read; run again")
    return Finished([], ItemDone(item.source, item.index, shown, length, time.monotonic() - begin))


def _numbers(path: Path, plan: CachePlan, length: int, max_pixels: int) -> list[int]:
    """Of the clip's frames. Where each frame stays once, those at the beginning are the same for any length; otherwise
    all are decoded once to be counted: files may say less or more than they hold."""
    rate, fps = read_header(path).rate, plan.architecture.fps
    mode = plan.request.video_clip_mode or _BEGINNING
    assert rate is not None
    assert fps is not None, "the table has been made of both"
    if is_same_rate(rate, fps) and mode == _BEGINNING:
        return [*range(length)]
    count, _ = whole_count(path, max_pixels)
    return chosen(count, rate, fps, length, mode)
