"""Reconstruct items: an image is read, computed and written in three stages; a clip goes to ``roundtrip_clip``."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from tvae.pipeline.jobs.compute import expect_pictures, roundtrip_pictures
from tvae.pipeline.jobs.context import Context
from tvae.pipeline.jobs.events import Event
from tvae.pipeline.jobs.existing import picture_serves, skipped
from tvae.pipeline.jobs.fingerprints import of_reconstructed
from tvae.pipeline.jobs.geometry import restore
from tvae.pipeline.jobs.lengths import LengthFit
from tvae.pipeline.jobs.metrics import QualityMeter
from tvae.pipeline.jobs.outputs import Item
from tvae.pipeline.jobs.pictures import Finished, Hold, Picture, on_host
from tvae.pipeline.jobs.reading import gathered, open_source
from tvae.pipeline.jobs.roundtrip_clip import roundtrip_clip_item
from tvae.pipeline.jobs.writing import open_output
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
            return picture_serves(output, of_reconstructed(item.source, kind, job, model))

        if (skip := skipped(item, self._context, serves)) is not None:
            return skip
        with open_source(item.source, job, model.info.spatial_factor, hold) as source:
            info, geometry = source.reader.info, source.geometry
            if info.kind == "video":
                return None
            output = self._context.claim(item, info.kind)
            if info.kind not in item.kinds and (skip := skipped(item, self._context, serves, info.kind)) is not None:
                return skip
            fit = LengthFit(model.info, job.align)
            fit.check(info.frames)
            (rgb, *_) = gathered(fit.through(source.frames())).frames
            notices = [*source.reader.warnings, *source.told, *fit.told]
            width, height = geometry.size
            spec = dataclasses.replace(info.spec, width=width, height=height)
            fingerprint = of_reconstructed(item.source, info.kind, job, model)
        return Picture(
            item,
            output,
            self._vae,
            on_host(rgb, model.device),
            rgb.shape[0] * rgb.shape[1],
            partial(self._write, spec=spec, geometry=geometry, fingerprint=fingerprint, notices=notices),
            alone=model.info.temporal_factor is not None,
        )

    def compute(self, model: Model, values: Sequence[Tensor]) -> list[Tensor]:
        return roundtrip_pictures(model, values)

    def expect(self, model: Model, values: Sequence[Tensor]) -> None:
        expect_pictures(model, "encode", values)

    def clip(self, item: Item) -> Event:
        return roundtrip_clip_item(item, self._context)

    def _write(
        self,
        picture: Picture,
        results: list[Tensor],
        *,
        spec: PictureSpec,
        geometry: Geometry,
        fingerprint: str,
        notices: list[str],
    ) -> Finished:
        levels, finite = results
        check_finite(finite)
        reference, frame = (restore(tensor.numpy(), geometry) for tensor in (picture.values, levels))
        meter = QualityMeter()
        meter.add(reference, frame)
        with open_output(picture.output, spec, "image", self._context.job, None, fingerprint) as writer:
            writer.write(Frame(frame))
            writer.commit()
        return picture.finished([*notices, *writer.warnings], meter.result())
