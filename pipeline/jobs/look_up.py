"""The first stage of encode and roundtrip: is an item done, is it a clip, or what picture is it?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from tvae.pipeline.jobs.context import Context
from tvae.pipeline.jobs.events import Event
from tvae.pipeline.jobs.existing import skipped
from tvae.pipeline.jobs.lengths import LengthFit
from tvae.pipeline.jobs.outputs import Item
from tvae.pipeline.jobs.pictures import Finish, Hold, Picture, on_host
from tvae.pipeline.jobs.reading import Source, gathered, open_source
from tvae.pipeline.media.formats import Kind
from tvae.pipeline.stores import RemoteFile

__all__ = ["look_up"]


def look_up(
    item: Item,
    context: Context,
    vae: str,
    hold: Hold,
    serves: Callable[[Path, Kind], str | None],
    finish: Callable[[Source, LengthFit, Sequence[str]], Finish],
    *,
    result_bytes: int | None = None,
    beside_bytes: int = 0,
    shows_progress: bool = True,
    prepared: Callable[[Source, np.ndarray], np.ndarray] = lambda _source, rgb: rgb,
) -> Event | Picture | None:
    """See ``Operation.look_up``.

    serves: see ``skipped``. finish: how the output of a picture is written that was read from a source, made as long as
    the VAE takes it, with lines on what was done to it. result_bytes: of a pixel's results until they are written;
    None: of latents, with room for mean and variance of the picture and its mirror image. beside_bytes: of what is kept
    of a pixel beside them. prepared: what goes into the VAE of an opened source and its picture, uint8 [H, W, 3], or
    [H, W, 4] where the job wants alpha: one picture [H, W, 3], or several [N, H, W, 3].
    """
    job, model = context.job, context.facts_for(vae)
    if (skip := skipped(item, context, serves)) is not None:
        return skip
    if isinstance(item.member, RemoteFile) and item.kinds == {"video"}:
        return None  # it is fetched once, when its turn comes
    with open_source(item.source, job, model.info.spatial_factor, context.sandbox, hold, item.member) as source:
        kind = source.reader.info.kind
        if kind == "video":
            return None
        output = context.claim(item, kind)
        if item.kinds != {kind} and (skip := skipped(item, context, serves, kind)) is not None:
            return skip
        fit = LengthFit(model.info, job.align)
        fit.check(source.reader.info.frames)
        (rgb, *_) = gathered(fit.through(source.frames())).frames
        beside_bytes = max(beside_bytes, rgb.shape[2] - 3)  # alpha
        rgb = prepared(source, rgb)
        write = finish(source, fit, [*source.reader.warnings, *source.told, *fit.told])
        source.check_unchanged()
    pixels = rgb.shape[-3] * rgb.shape[-2]
    alone = model.info.temporal_factor is not None
    values = on_host(rgb, model.device)
    if result_bytes is None:
        result_bytes = -(-4 * 4 * model.info.latent_channels // model.info.spatial_factor**2)
    waits = values.nbytes + pixels * (result_bytes + beside_bytes)
    return Picture(item, output, vae, values, pixels, write, alone, shows_progress, waits)
