"""Decode items: latents of an image are read, computed and written in three stages; those of a clip go to
``decode_clip``."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from tvae.pipeline.errors import InputError
from tvae.pipeline.jobs.alpha import with_alpha
from tvae.pipeline.jobs.clips import ClipRun
from tvae.pipeline.jobs.compute import decode_pictures, expect_pictures, latents_to_decode
from tvae.pipeline.jobs.context import Context
from tvae.pipeline.jobs.decode_clip import decode_clip_item, model_of, vae_of
from tvae.pipeline.jobs.events import Event
from tvae.pipeline.jobs.existing import check_still_free, is_there, picture_serves, skipped
from tvae.pipeline.jobs.fingerprints import of_decoded
from tvae.pipeline.jobs.geometry import restore
from tvae.pipeline.jobs.outcome import Finished
from tvae.pipeline.jobs.outputs import Item
from tvae.pipeline.jobs.pictures import Hold, Picture, on_host
from tvae.pipeline.jobs.remote.opening import head_of_latents, latents_to_read
from tvae.pipeline.jobs.writing import made_picture, open_output
from tvae.pipeline.latents import LatentsMeta, LatentsReader
from tvae.pipeline.media import Frame, check_finite
from tvae.pipeline.stores import RemoteFile

if TYPE_CHECKING:
    from tvae.pipeline.session.model import Model

__all__ = ["DECODED_BYTES", "Decode"]

DECODED_BYTES = 8
"""Of a pixel of a picture that is decoded: its latents, the results, and the levels that are written."""


class Decode:
    """See ``Operation``."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def look_up(self, item: Item, hold: Hold) -> Event | Picture | None:
        if isinstance(item.member, RemoteFile):
            if self._may_be_done(item):
                with head_of_latents(item, item.member, self._context) as reader:
                    if (skip := self._skip(item, reader)) is not None:
                        return skip
            if item.member.is_folder:
                return None  # it is fetched once, when its turn comes
        with latents_to_read(item, self._context, waits=True) as reader:
            skip = self._skip(item, reader)
            return skip if skip is not None or reader.meta.kind == "video" else self._read(item, reader, hold)

    def _may_be_done(self, item: Item) -> bool:
        """Is there a file of its output's name? Then it is worth a look at the head of what it would be made of."""
        with suppress(InputError):
            for kind in item.kinds:
                with self._context.standing(item.output(kind)) as there:
                    if is_there(there):
                        return True
        return False

    def _skip(self, item: Item, reader: LatentsReader) -> Event | None:
        kind, fingerprint = reader.meta.kind, self._fingerprint(reader)
        self._context.claim(item, kind)
        return skipped(item, self._context, lambda output, _kind: picture_serves(output, fingerprint), kind)

    def _fingerprint(self, reader: LatentsReader) -> str:
        job = self._context.job
        return of_decoded(reader, job, model_of(reader, job, self._context.facts_for))

    def _read(self, item: Item, reader: LatentsReader, hold: Hold) -> Picture:
        job, meta = self._context.job, reader.meta
        model, fingerprint = model_of(reader, job, self._context.facts_for), self._fingerprint(reader)
        width, height = meta.geometry.padded_size
        hold(width * height * DECODED_BYTES)
        (part,) = reader
        values = latents_to_decode(model, part.tensors, meta.space)
        return Picture(
            item,
            self._context.claim(item, meta.kind),
            vae_of(reader, job),
            on_host(values, model.device),
            width * height,
            partial(self._write, meta=meta, alpha=part.alpha if job.alpha == "keep" else None, fingerprint=fingerprint),
            alone=model.info.temporal_factor is not None,
        )

    def compute(self, model: Model, values: Sequence[Tensor]) -> list[Tensor]:
        return decode_pictures(model, values)

    def expect(self, model: Model, values: Sequence[Tensor]) -> None:
        expect_pictures(model, "decode", values)

    def clip(self, item: Item) -> ClipRun:
        return decode_clip_item(item, self._context)

    def _write(
        self,
        picture: Picture,
        results: list[Tensor],
        *,
        meta: LatentsMeta,
        alpha: np.ndarray | None,
        fingerprint: str,
    ) -> Finished:
        levels, finite = results
        check_finite(finite)
        frame = Frame(with_alpha(restore(levels.numpy(), meta.geometry), alpha))
        with open_output(picture.output, meta.picture, "image", self._context.job, None, fingerprint) as writer:
            writer.write(frame)
            check_still_free(picture.output, self._context.job.existing, fingerprint)
            writer.commit()
        return picture.finished(writer.warnings, made=made_picture(picture.output, fingerprint, self._context.job))
