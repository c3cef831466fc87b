"""Reconstruct items: an image is read, computed and written in three stages; a clip goes to ``roundtrip_clip``."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from tvae.pipeline.jobs.alpha import Alpha, with_alpha
from tvae.pipeline.jobs.clips import ClipRun
from tvae.pipeline.jobs.compute import expect_pictures, roundtrip_pictures
from tvae.pipeline.jobs.context import Context
from tvae.pipeline.jobs.decode import DECODED_BYTES
from tvae.pipeline.jobs.events import Event
from tvae.pipeline.jobs.existing import check_still_free, picture_serves
from tvae.pipeline.jobs.fingerprints import of_reconstructed
from tvae.pipeline.jobs.geometry import restore
from tvae.pipeline.jobs.lengths import LengthFit
from tvae.pipeline.jobs.look_up import look_up
from tvae.pipeline.jobs.metrics import QualityMeter
from tvae.pipeline.jobs.outcome import Finished
from tvae.pipeline.jobs.outputs import Item
from tvae.pipeline.jobs.pictures import Finish, Hold, Picture
from tvae.pipeline.jobs.reading import Source
from tvae.pipeline.jobs.roundtrip_clip import roundtrip_clip_item
from tvae.pipeline.jobs.writing import made_picture, open_output
from tvae.pipeline.latents import Geometry
from tvae.pipeline.media import Frame, PictureSpec, check_finite
from tvae.pipeline.media.formats import Kind
from tvae.pipeline.models.load import BUILTIN

if TYPE_CHECKING:
    from tvae.pipeline.session.model import Model

__all__ = ["Roundtrip"]


class Roundtrip:
    """See ``Operation``. Quality compares 8-bit pictures as the VAE got them with what it gave."""

    def __init__(self, context: Context) -> None:
        self._context, self._vae = context, context.job.vae or BUILTIN

    def look_up(self, item: Item, hold: Hold) -> Event | Picture | None:
        job, model = self._context.job, self._context.facts_for(self._vae)

        def serves(output: Path, kind: Kind) -> str | None:
            return picture_serves(output, of_reconstructed(item.origin(), kind, job, model))

        alpha = Alpha()

        def finish(source: Source, _fit: LengthFit, notices: Sequence[str]) -> Finish:
            info, (width, height) = source.reader.info, source.geometry.size
            spec = dataclasses.replace(info.spec, width=width, height=height)
            fingerprint = of_reconstructed(item.origin(), info.kind, job, model)
            return partial(
                self._write,
                spec=spec,
                geometry=source.geometry,
                alpha=alpha.levels,
                fingerprint=fingerprint,
                notices=notices,
            )

        return look_up(
            item,
            self._context,
            self._vae,
            hold,
            serves,
            finish,
            result_bytes=DECODED_BYTES,
            prepared=alpha.taken_off,
        )

    def compute(self, model: Model, values: Sequence[Tensor]) -> list[Tensor]:
        return roundtrip_pictures(model, values)

    def expect(self, model: Model, values: Sequence[Tensor]) -> None:
        expect_pictures(model, "encode", values)

    def clip(self, item: Item) -> ClipRun:
        return roundtrip_clip_item(item, self._context)

    def _write(
        self,
        picture: Picture,
        results: list[Tensor],
        *,
        spec: PictureSpec,
        geometry: Geometry,
        alpha: np.ndarray | None,
        fingerprint: str,
        notices: Sequence[str],
    ) -> Finished:
        levels, finite = results
        check_finite(finite)
        reference, frame = (restore(tensor.numpy(), geometry) for tensor in (picture.values, levels))
        meter = QualityMeter()
        meter.add(reference, frame)
        with open_output(picture.output, spec, "image", self._context.job, None, fingerprint) as writer:
            writer.write(Frame(with_alpha(frame, alpha)))
            check_still_free(picture.output, self._context.job.existing, fingerprint)
            writer.commit()
        made = made_picture(picture.output, fingerprint, self._context.job)
        return picture.finished([*notices, *writer.warnings], meter.result(), made)
