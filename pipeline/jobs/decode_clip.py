"""Decode the latents of one clip to a video."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice, repeat
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from tvae.pipeline import latents
from tvae.pipeline.errors import InputError, UsageError
from tvae.pipeline.jobs.busy import CLIP, CLIP_READ, CLIP_WRITE
from tvae.pipeline.jobs.checkpoint import Checkpoint, goes_on
from tvae.pipeline.jobs.clip_calls import decoded_frames, decoded_steps
from tvae.pipeline.jobs.clip_modes import ClipMode, Passage, passage
from tvae.pipeline.jobs.clips import ClipRun
from tvae.pipeline.jobs.compute import decode_clip, enough_memory, latents_to_decode
from tvae.pipeline.jobs.context import Context
from tvae.pipeline.jobs.decode_parts import DecodeParts, Ends
from tvae.pipeline.jobs.describe import identity
from tvae.pipeline.jobs.events import ItemDone, ItemStarted, Progress
from tvae.pipeline.jobs.existing import check_still_free, picture_serves, undone
from tvae.pipeline.jobs.fingerprints import of_decoded
from tvae.pipeline.jobs.geometry import restore
from tvae.pipeline.jobs.job import Job
from tvae.pipeline.jobs.lengths import frame_count
from tvae.pipeline.jobs.memory import Trimmer
from tvae.pipeline.jobs.on_demand import LatentRows, PictureSink
from tvae.pipeline.jobs.outcome import Finished
from tvae.pipeline.jobs.outputs import Item
from tvae.pipeline.jobs.queues import prefetched, written_in_thread
from tvae.pipeline.jobs.remote.opening import latents_to_read
from tvae.pipeline.jobs.steps import latents_in_steps
from tvae.pipeline.jobs.writing import open_output
from tvae.pipeline.latents import LatentsReader
from tvae.pipeline.media import ClipTags, Frame, PartedVideoWriter, SideStreams, Writer
from tvae.pipeline.media.formats import written_as
from tvae.pipeline.models.hub import is_hub_id
from tvae.pipeline.models.load import BUILTIN

if TYPE_CHECKING:
    from tvae.pipeline.session.model import Model

__all__ = ["decode_clip_item", "model_of", "vae_of"]


@dataclass
class _Clip:
    """Raw latents ``[C, t, h, w]`` that go through the decoder together, and the times of the frames they give."""

    latents: Tensor
    pts: list[int | None]
    durations: list[int | None]


def decode_clip_item(item: Item, context: Context) -> ClipRun:
    """Writes the clip, unless it is there."""
    with latents_to_read(item, context, waits=False) as reader:
        return (yield from _decode(item, reader, context))


def _decode(item: Item, reader: LatentsReader, context: Context) -> ClipRun:
    job, meta = context.job, reader.meta
    output = context.claim(item, meta.kind)

    def up_to_date() -> str | None:
        return picture_serves(output, of_decoded(reader, job, model_of(reader, job, context.facts_for)))

    with undone(item, output, job.existing, up_to_date) as skip:
        if skip is not None:
            return skip
        audio = None
        if job.audio == "copy" and reader.streams is not None:
            reader.check_streams()
            audio = SideStreams.from_json(reader.streams, reader.path)
            if (target := written_as(output.suffix)) is not None:
                context.sandbox.rehearse_streams(audio, target.name)
        tags = ClipTags.from_record(reader.streams or {}, reader.path)
        yield
        begin = time.monotonic()
        model = model_of(reader, job, context.model_for)
        context.emit(ItemStarted(item.source, item.index, output, meta.kind, reader.frames))
        way = passage(model, "decode", meta.kind)
        fingerprint = of_decoded(reader, job, model)
        with open_output(
            output, meta.picture, meta.kind, job, audio, fingerprint, tags=tags, parted=way.resumes
        ) as writer:
            if way.mode is ClipMode.ON_DEMAND:
                done = _decode_on_demand(item, reader, model, writer, context)
            else:
                parts = None
                if isinstance(writer, PartedVideoWriter):
                    # a CPU computes slower than any encoder, and what encoders take counts against its budget
                    beside = context.queue_frames > 0 and model.device.type != "cpu"
                    parts = DecodeParts(writer, fingerprint, way.stream, beside=beside)
                done = _decode_chunks(item, reader, model, way, writer, parts, context)
            yield
            check_still_free(output, job.existing, fingerprint)
            writer.commit()
    last = ItemDone(item.source, item.index, output, done, time.monotonic() - begin)
    return Finished(writer.warnings, last)


def _decode_chunks(
    item: Item,
    reader: LatentsReader,
    model: Model,
    way: Passage,
    writer: Writer,
    parts: DecodeParts | None,
    context: Context,
) -> int:
    """What goes through the decoder together, one after the other; returns the number of frames."""
    done, trimmer, times = 0, Trimmer(), deque[tuple[int | None, int | None]]()
    start = Checkpoint(0, 0, 0) if parts is None or context.job.existing == "overwrite" else parts.begin()
    if start.frames:
        context.notify(item, [goes_on(start.frames)])
    with (
        prefetched(context.busy.during(CLIP_READ, _clips(reader, model, way)), context.queue_frames) as clips,
        written_in_thread(context.busy.by(CLIP_WRITE, _do), context.queue_frames) as put,
    ):
        if isinstance(writer, PartedVideoWriter):
            for clip in islice(clips, start.chunks):
                times.extend(zip(clip.pts, clip.durations, strict=True))
                while times and done < start.frames:
                    writer.pass_over(*times.popleft())
                    done += 1
        ends = None if parts is None else parts.counted(start)
        for clip, frames, end in _decoded(clips, model, way, context, ends):
            times.extend(zip(clip.pts, clip.durations, strict=True))
            for rgb in frames[: len(times)]:  # copies of the last frame, which filled the clip up, have no times
                put(partial(writer.write, Frame(restore(rgb, reader.meta.geometry), *times.popleft())))
                done += 1
                trimmer.one_more()
            if end is not None:
                put(end)
            context.emit(Progress(item.source, item.index, done, reader.frames))
        if times:
            raise InputError(f"damaged latents: {done + len(times)} timestamps for {done} frames")
    return done


def _do(work: Callable[[], None]) -> None:
    work()


def _decode_on_demand(item: Item, reader: LatentsReader, model: Model, writer: Writer, context: Context) -> int:
    """A clip whose latents are read, and whose frames are written, as the model gets to them; returns their number."""
    meta, trimmer = reader.meta, Trimmer()
    times: deque[tuple[int | None, int | None]] = deque()
    done = 0

    def latent_frames() -> Iterator[Tensor]:
        for part in reader:
            times.extend(zip(part.pts, part.durations, strict=True))
            yield from latents_to_decode(model, part.tensors, meta.space).unbind(1)

    with (
        prefetched(context.busy.during(CLIP_READ, latent_frames()), context.queue_frames) as read,
        written_in_thread(context.busy.by(CLIP_WRITE, writer.write), context.queue_frames) as put,
    ):
        first = next(read)
        rest = context.busy.without(CLIP, read)
        clip = LatentRows(chain([first], rest), reader.latent_frames, (first.shape[1], first.shape[2]), model)

        def take(picture: np.ndarray) -> None:
            nonlocal done
            if not times:  # a copy of the last frame, which filled the clip
                return
            with context.busy.off(CLIP):
                put(Frame(restore(picture, meta.geometry), *times.popleft()))
            done += 1
            trimmer.one_more()
            context.emit(Progress(item.source, item.index, done, reader.frames))

        with context.busy.at(CLIP), enough_memory(model):
            model.run_frames("decode", clip, PictureSink(take))
        if times:
            raise InputError(f"damaged latents: {done + len(times)} timestamps for {done} frames")
    return done


def vae_of(reader: LatentsReader, job: Job) -> str:
    """The VAE that was asked for, or else the one that the latents name."""
    return job.vae or reader.meta.vae.place


def model_of(reader: LatentsReader, job: Job, opened: Callable[[str], Model]) -> Model:
    """The VAE of latents; that the one they name is not there is their matter.

    InputError, too, when it is not the one that made them. A file is no reason to use the network: a hub id that only
    the latents name is fetched when the user names it as well.
    """
    name = vae_of(reader, job)
    if job.vae is None and name != BUILTIN and is_hub_id(name) and not Path(name).is_dir():
        raise InputError(f"was made by the VAE '{name}' of the hub; pass --vae {name} to fetch it, or a local folder")
    try:
        model = opened(name)
    except UsageError as error:
        if job.vae is not None:
            raise
        raise InputError(f"was made by the VAE '{name}', which cannot be opened ({error}); pass --vae") from error
    latents.check_vae(reader, identity(model), other=job.allow_other_vae)
    return model


def _decoded(
    clips: Iterable[_Clip], model: Model, way: Passage, context: Context, ends: Ends | None
) -> Iterator[tuple[_Clip, list[np.ndarray], Callable[[], None] | None]]:
    """What goes through the decoder together, its frames, and what is to be done once those are written."""

    def behind(clip: _Clip) -> Callable[[], None] | None:
        return None if ends is None else ends(len(clip.pts))

    given = ((clip, clip.latents) for clip in clips)
    if way.mode is ClipMode.FRAME_BY_FRAME:
        for clip, rgb in decoded_frames(given, model, context):
            yield clip, [rgb], behind(clip)
    elif way.stream is not None:
        yield from decoded_steps(given, way.stream, model, context, behind)
    else:
        for clip, latents in given:
            with context.busy.at(CLIP), enough_memory(model):
                frames = decode_clip(model, latents)
            yield clip, frames, None


def _clips(reader: LatentsReader, model: Model, way: Passage) -> Iterator[_Clip]:
    """What goes through the decoder together: latent frame by latent frame, in steps, or the whole clip."""
    times: list[tuple[int | None, int | None]] = []

    def pieces() -> Iterator[Tensor]:
        for part in reader:
            times.extend(zip(*_times(reader, part.pts, part.durations), strict=True))
            yield latents_to_decode(model, part.tensors, reader.meta.space)

    sizes: Iterator[int] = iter([reader.latent_frames])
    if way.stream is not None:
        sizes = way.stream.cuts.sizes(reader.latent_frames if way.stream.cuts.rest_first else None)
    elif way.mode is ClipMode.FRAME_BY_FRAME:
        sizes = repeat(1)
    begins = True
    for chunk in latents_in_steps(pieces(), sizes):
        count = frame_count(model.info, chunk.shape[1], begins)
        known, times[:count], begins = times[:count], [], False
        yield _Clip(chunk, [pts for pts, _ in known], [duration for _, duration in known])
    if times:
        raise InputError(f"damaged latents: {len(times)} more timestamps than frames")


def _times(
    reader: LatentsReader, pts: tuple[int | None, ...], durations: tuple[int | None, ...]
) -> tuple[list[int | None], list[int | None]]:
    """An image has one frame and no times."""
    return (list(pts), list(durations)) if reader.meta.kind == "video" else ([None], [None])
