"""Encode items: an image is read, computed and written in three stages; a clip goes to ``encode_clip``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from tvae.pipeline import latents
from tvae.pipeline.jobs.compute import encode_pictures, expect_pictures, kept_names
from tvae.pipeline.jobs.context import Context
from tvae.pipeline.jobs.describe import describe
from tvae.pipeline.jobs.encode_clip import encode_clip_item
from tvae.pipeline.jobs.events import Event
from tvae.pipeline.jobs.existing import latents_serve, skipped
from tvae.pipeline.jobs.fingerprints import of_encoded
from tvae.pipeline.jobs.lengths import LengthFit
from tvae.pipeline.jobs.outputs import Item
from tvae.pipeline.jobs.pictures import Finished, Hold, Picture, on_host
from tvae.pipeline.jobs.reading import gathered, open_source
from tvae.pipeline.latents import LatentsMeta
from tvae.pipeline.media.formats import Kind
from tvae.pipeline.models.load import BUILTIN

if TYPE_CHECKING:
    from tvae.pipeline.session.model import Model

__all__ = ["Encode"]


class Encode:
    """See ``Operation``."""

    def __init__(self, context: Context) -> None:
        self._context, self._vae = context, context.job.vae or BUILTIN

    def look_up(self, item: Item, hold: Hold) -> Event | Picture | None:
        job, model = self._context.job, self._context.facts_for(self._vae)

        def serves(output: Path, kind: Kind) -> str | None:
            return latents_serve(output, of_encoded(item.source, kind, job, model))

        if (skip := skipped(item, self._context, serves)) is not None:
            return skip
        with open_source(item.source, job, model.info.spatial_factor, hold) as source:
            info = source.reader.info
            if info.kind == "video":
                return None
            output = self._context.claim(item, info.kind)
            if info.kind not in item.kinds and (skip := skipped(item, self._context, serves, info.kind)) is not None:
                return skip
            fit = LengthFit(model.info, job.align)
            fit.check(info.frames)
            (rgb, *_) = gathered(fit.through(source.frames())).frames
            notices = [*source.reader.warnings, *source.told, *fit.told]
            meta = describe(item.source, source, job, model)
        return Picture(
            item,
            output,
            self._vae,
            on_host(rgb, model.device),
            rgb.shape[0] * rgb.shape[1],
            partial(self._write, meta=meta, repeated=fit.repeated, notices=notices),
            alone=model.info.temporal_factor is not None,
            shows_progress=False,
        )

    def compute(self, model: Model, values: Sequence[Tensor]) -> list[Tensor]:
        job = self._context.job
        return encode_pictures(model, values, job.posterior, job.space, job.seed)

    def expect(self, model: Model, values: Sequence[Tensor]) -> None:
        expect_pictures(model, "encode", values)

    def clip(self, item: Item) -> Event:
        return encode_clip_item(item, self._context)

    def _write(
        self, picture: Picture, results: list[Tensor], *, meta: LatentsMeta, repeated: int, notices: list[str]
    ) -> Finished:
        tensors = dict(zip(kept_names(meta.posterior.kind), results, strict=True))
        overwrite = self._context.job.existing == "overwrite"
        latents.write_image_latents(picture.output, tensors, meta, repeated=repeated, overwrite=overwrite)
        return picture.finished(notices)
