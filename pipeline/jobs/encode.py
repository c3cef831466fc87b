"""Encode items: an image is read, computed and written in three stages; a clip goes to ``encode_clip``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from tvae.pipeline import latents
from tvae.pipeline.jobs.alpha import Alpha
from tvae.pipeline.jobs.clips import ClipRun
from tvae.pipeline.jobs.compute import encode_pictures, expect_pictures, kept_names
from tvae.pipeline.jobs.context import Context
from tvae.pipeline.jobs.describe import describe
from tvae.pipeline.jobs.encode_clip import encode_clip_item
from tvae.pipeline.jobs.events import Event, Made
from tvae.pipeline.jobs.existing import latents_serve
from tvae.pipeline.jobs.fingerprints import of_encoded
from tvae.pipeline.jobs.lengths import LengthFit
from tvae.pipeline.jobs.look_up import look_up
from tvae.pipeline.jobs.outcome import Finished
from tvae.pipeline.jobs.outputs import Item
from tvae.pipeline.jobs.pictures import Finish, Hold, Picture
from tvae.pipeline.jobs.reading import Source
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
            return latents_serve(output, of_encoded(item.origin(), kind, job, model))

        alpha = Alpha()

        def finish(source: Source, fit: LengthFit, notices: Sequence[str]) -> Finish:
            meta = describe(item.origin(), source, job, model)
            return partial(self._write, meta=meta, repeated=fit.repeated, alpha=alpha.levels, notices=notices)

        return look_up(
            item,
            self._context,
            self._vae,
            hold,
            serves,
            finish,
            shows_progress=False,
            prepared=alpha.taken_off,
        )

    def compute(self, model: Model, values: Sequence[Tensor]) -> list[Tensor]:
        job = self._context.job
        return encode_pictures(model, values, job.posterior, job.space, job.seed)

    def expect(self, model: Model, values: Sequence[Tensor]) -> None:
        expect_pictures(model, "encode", values)

    def clip(self, item: Item) -> ClipRun:
        return encode_clip_item(item, self._context)

    def _write(
        self,
        picture: Picture,
        results: list[Tensor],
        *,
        meta: LatentsMeta,
        repeated: int,
        alpha: np.ndarray | None,
        notices: Sequence[str],
    ) -> Finished:
        tensors = dict(zip(kept_names(meta.posterior.kind), results, strict=True))
        job = self._context.job
        text = None if alpha is None else latents.alpha_text(alpha)
        if text is None and alpha is not None:
            notices = [*notices, "transparency dropped: it is too large to be kept beside latents"]
        written = latents.write_image_latents(
            picture.output,
            tensors,
            meta,
            repeated=repeated,
            alpha=text,
            overwrite=job.existing == "overwrite",
            whole=job.recorded,
        )
        if written.file is None:
            return picture.finished(notices)
        said = latents.said_of_latents(meta, 1, {name: tensor.shape for name, tensor in tensors.items()})
        return picture.finished(notices, made=Made(written.file, said, meta.source.size))
