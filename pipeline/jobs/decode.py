"""Decode items: latents of an image are read, computed and written in three stages; those of a clip go to
``decode_clip``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor

from tvae.pipeline.jobs.compute import decode_pictures, expect_pictures, latents_to_decode
from tvae.pipeline.jobs.context import Context
from tvae.pipeline.jobs.decode_clip import decode_clip_item, model_of, vae_of
from tvae.pipeline.jobs.events import Event
from tvae.pipeline.jobs.existing import picture_serves, skipped
from tvae.pipeline.jobs.fingerprints import of_decoded
from tvae.pipeline.jobs.geometry import restore
from tvae.pipeline.jobs.other_programs import opened_latents
from tvae.pipeline.jobs.outcome import Finished
from tvae.pipeline.jobs.outputs import Item
from tvae.pipeline.jobs.pictures import Hold, Picture, on_host
from tvae.pipeline.jobs.writing import open_output
from tvae.pipeline.latents import LatentsMeta
from tvae.pipeline.media import Frame, check_finite

if TYPE_CHECKING:
    from tvae.pipeline.session.model import Model

__all__ = ["Decode"]

_HELD_BYTES = 8
"""Of a pixel of a picture that is decoded: its latents, the results, and the levels that are written."""


class Decode:
    """See ``Operation``."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def look_up(self, item: Item, hold: Hold) -> Event | Picture | None:
        job, reader = self._context.job, opened_latents(item, self._context)
        meta = reader.meta
        output = self._context.claim(item, meta.kind)
        model = model_of(reader, job, self._context.facts_for)
        fingerprint = of_decoded(reader, job, model)
        skip = skipped(item, self._context, lambda output, _kind: picture_serves(output, fingerprint), meta.kind)
        if skip is not None or meta.kind == "video":
            return skip
        width, height = meta.geometry.padded_size
        hold(width * height * _HELD_BYTES)
        (part,) = reader
        values = latents_to_decode(model, part.tensors, meta.space)
        return Picture(
            item,
            output,
            vae_of(reader, job),
            on_host(values, model.device),
            width * height,
            partial(self._write, meta=meta, fingerprint=fingerprint),
            alone=model.info.temporal_factor is not None,
        )

    def compute(self, model: Model, values: Sequence[Tensor]) -> list[Tensor]:
        return decode_pictures(model, values)

    def expect(self, model: Model, values: Sequence[Tensor]) -> None:
        expect_pictures(model, "decode", values)

    def clip(self, item: Item) -> Event:
        return decode_clip_item(item, self._context)

    def _write(self, picture: Picture, results: list[Tensor], *, meta: LatentsMeta, fingerprint: str) -> Finished:
        levels, finite = results
        check_finite(finite)
        frame = Frame(restore(levels.numpy(), meta.geometry))
        with open_output(picture.output, meta.picture, "image", self._context.job, None, fingerprint) as writer:
            writer.write(frame)
            writer.commit()
        return picture.finished(writer.warnings)
