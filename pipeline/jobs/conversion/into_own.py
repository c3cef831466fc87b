"""Latents of a trainer's cache into tvae's own files, as if ``tvae encode`` had written them."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from tvae.pipeline.jobs.conversion.given import Given, KnownVae, Once, Taken
from tvae.pipeline.jobs.convert import in_space, write_latents
from tvae.pipeline.jobs.events import ItemDone, ItemSkipped
from tvae.pipeline.jobs.existing import DONE_ALREADY, latents_serve
from tvae.pipeline.jobs.job import Job, Space
from tvae.pipeline.jobs.outcome import Finished
from tvae.pipeline.jobs.outputs import LATENTS_ENDINGS, Item
from tvae.pipeline.latents import LatentsPart

__all__ = ["IntoOwn"]


class IntoOwn:
    """space: None for that of the cache."""

    begun = True
    """Any latents can be tvae's own."""

    def __init__(self, job: Job, space: Space | None) -> None:
        self._job, self._space = job, space
        self._told = Once()

    def write(self, item: Item, taken: Taken) -> Finished | ItemSkipped:
        """Writes the latents of one picture, or of all pieces of one video, unless they are there. InputError,
        OutputError."""
        begin, frames, made = time.monotonic(), 0, False
        outputs, notices = list[Path](), list[str]()
        for given in taken.read():
            notices += given.notices
            if given.mirrored is not None:
                notices.append("tvae's own latents hold no mirrored images; those of the cache are left out")
            outputs.append(self._output(item, given, taken.pieces))
            made = self._write(outputs[-1], given) or made
            frames += 1 if given.piece is None else given.piece.frames
        if not made:
            return ItemSkipped(item.source, item.index, outputs[0], DONE_ALREADY)
        return Finished(
            self._told.new(notices), ItemDone(item.source, item.index, outputs[0], frames, time.monotonic() - begin)
        )

    def _write(self, output: Path, given: Given) -> bool:
        """False: it is there already."""
        old, overwrite = given.meta.space, self._job.existing == "overwrite"
        meta = replace(given.meta, space=replace(old, name=self._space or old.name))
        if not overwrite and latents_serve(output, meta.fingerprint):
            return False
        tensors = in_space(given.tensors, KnownVae.of(meta).info.space, old.name, meta.space.name)
        times = range(0 if given.piece is None else given.piece.frames)
        part = LatentsPart(tensors, 0, 0, tuple(times), tuple(1 for _ in times), 0)
        write_latents(output, [part], meta, overwrite=overwrite)
        return True

    def _output(self, item: Item, given: Given, pieces: int) -> Path:
        assert item.below is not None, "an item of a cache has a place"
        name = item.below
        if given.piece is not None and pieces > 1:
            name = name.with_name(f"{name.stem}_{given.piece.start:05d}-{given.piece.frames:03d}{name.suffix}")
        return Path(self._job.output or ".") / name.with_name(name.name + LATENTS_ENDINGS[given.meta.kind])
