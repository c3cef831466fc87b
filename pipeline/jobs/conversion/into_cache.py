"""Latents into a trainer's cache: what the trainer would find wrong, or take for what it is not, is refused."""

from __future__ import annotations

import time
from pathlib import PurePosixPath

from torch import Tensor

from tvae.pipeline.caches import Framing, Subject
from tvae.pipeline.caches.record import CacheRecord, FileRecord, read_record
from tvae.pipeline.errors import InputError
from tvae.pipeline.jobs.cache_draw import drawn, generator_of
from tvae.pipeline.jobs.cache_plan import CachePlan
from tvae.pipeline.jobs.conversion.given import Cached, Given, KnownVae, Once, Taken
from tvae.pipeline.jobs.convert import in_space
from tvae.pipeline.jobs.describe import tool
from tvae.pipeline.jobs.events import ItemDone, ItemSkipped
from tvae.pipeline.jobs.existing import DONE_ALREADY, undone
from tvae.pipeline.jobs.job import Job
from tvae.pipeline.jobs.outcome import Finished
from tvae.pipeline.jobs.outputs import Item
from tvae.pipeline.latents import Geometry, LatentsMeta
from tvae.pipeline.media.formats import listed

__all__ = ["IntoCache"]

_NEAR = 1
"""Pixels that two ways of rounding differ by."""


class IntoCache:
    """job: of the operation cache."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._plans: dict[object, CachePlan] = {}
        self._told = Once()

    @property
    def begun(self) -> bool:
        """Could any latents be such a cache?"""
        return bool(self._plans)

    def write(self, item: Item, taken: Taken) -> Finished | ItemSkipped:
        """Writes the entries of one picture or video, unless they are there. Raises InputError, OutputError, and
        UsageError where the VAE is not the trainer's."""
        begin, plan, notices = time.monotonic(), self._plan(taken.meta), list[str]()
        if taken.meta.kind == "video":
            plan.check_clips()
        item, posterior = plan.own(item), self._posterior(plan, taken.meta, notices)
        record = self._record(plan, taken, posterior)

        def serves() -> str | None:
            return DONE_ALREADY if _stands(plan, item, record) else None

        files: list[FileRecord] = []
        frames = 0
        with undone(item, item.record, self._job.existing, serves) as skip:
            if skip is not None:
                return ItemSkipped(item.source, item.index, plan.shown(item.record), skip.reason)
            for number, given in enumerate(taken.read(), 1):
                assert item.below is not None, "an item of a cache has a place"
                notices += given.notices
                subject = _subject(plan, item.below, given, taken.pieces)
                staged = plan.stage(subject, self._values(plan, subject, given, posterior, notices), item.record)
                files += [one.record for one in staged]
                plan.commit(item.record, record.with_files((*files,), complete=number == taken.pieces), staged)
                frames += 1 if given.piece is None else given.piece.frames
        done = ItemDone(item.source, item.index, plan.root / files[0].file, frames, time.monotonic() - begin)
        return Finished(self._told.new(notices), done)

    def _plan(self, meta: LatentsMeta) -> CachePlan:
        known = KnownVae.of(meta)
        key = known.info, known.dtype
        if key not in self._plans:
            self._plans[key] = CachePlan(self._job, known)
        return self._plans[key]

    def _posterior(self, plan: CachePlan, meta: LatentsMeta, notices: list[str]) -> str:
        """What is stored: *mean*, *sample*, or *none* of a VAE that gives a point."""
        wanted, kind = plan.posterior, meta.posterior.kind
        if kind in (wanted, "moments", "none"):
            return wanted
        who = f"{plan.trainer.name} stores a {wanted} for {plan.architecture.name}"
        if kind == "mean" and plan.request.posterior is None:
            notices.append(f"{who}; what is a mean stays one (tvae encode --posterior moments leaves both open)")
            return kind
        if plan.request.posterior is not None:
            raise InputError(f"a {wanted} was asked for and these latents are a {kind}; encode --posterior moments")
        raise InputError(f"{who} and these latents are a {kind}; pass --posterior {kind} to store it all the same")

    def _record(self, plan: CachePlan, taken: Taken, posterior: str) -> CacheRecord:
        """Of the entries, before there are any. They are made of the files that values come from."""
        drawn_here = posterior == "sample" and taken.meta.posterior.kind == "moments"
        said = {"posterior": posterior, "seed": self._job.seed if drawn_here else None, "latents": taken.checksum}
        name, architecture = plan.trainer.name, plan.architecture.name
        options = {**plan.options, **said}
        return CacheRecord(name, architecture, taken.meta.vae, taken.meta.source, taken.content, options, tool=tool())

    def _values(
        self, plan: CachePlan, subject: Subject, given: Given, posterior: str, notices: list[str]
    ) -> list[Tensor]:
        """[C, t, h, w] in the trainer's space: of the picture and, where both sides keep it, of the mirrored one."""
        space, (old, new) = plan.model.info.space, (given.meta.space.name, plan.architecture.space)
        values = in_space(given.tensors, space, old, new)
        if "latents" in values:
            found = values["latents"]
        elif posterior == "sample":
            found = drawn(values["mean"], values["logvar"], generator_of(subject, self._job.seed))
        else:
            found = values["mean"]
        if given.mirrored is None:
            return [found]
        if not subject.flip:
            notices.append(f"{plan.trainer.name} keeps no mirrored images in its cache; theirs are left out")
            return [found]
        return [found, in_space({"latents": given.mirrored}, space, old, new)["latents"]]


def _stands(plan: CachePlan, item: Item, record: CacheRecord) -> bool:
    """Are its files there, made of the same?"""
    try:
        found = read_record(item.record)
    except InputError:
        return False
    same = (found.made_of, found.source) == (record.made_of, record.source)
    return same and found.complete and all(file.stands(plan.root) for file in found.files)


def _subject(plan: CachePlan, place: PurePosixPath, given: Given, pieces: int) -> Subject:
    """Raises InputError where the trainer would see another picture than the latents are of."""
    meta, trainer = given.meta, plan.trainer
    if meta.kind not in trainer.upright and (meta.rotation or meta.mirrored):
        raise InputError(
            f"its {meta.kind} was turned as its file says and {trainer.name} does not turn it; save it upright, then "
            "encode it"
        )
    came = Cached.of(meta)
    if came is not None and came.as_stored and meta.kind in trainer.upright:
        raise InputError(
            f"its {meta.kind} is to be turned as its file says, which {trainer.name} does and {came.trainer} does not; "
            "save it upright, then cache it"
        )
    if trainer.whole_names and not listed(place.suffix):
        raise InputError(f"{trainer.name} wants the whole name of its picture, not '{place.name}'; pass --source")
    if given.repeated:
        raise InputError(f"its last frame was repeated {given.repeated} times; encode it with --align crop")
    if trainer.one_piece and pieces > 1:
        raise InputError(f"{trainer.name} keeps one file of each video and cannot tell {pieces} pieces apart")
    size = meta.geometry.source_width, meta.geometry.source_height
    framing = plan.framing(size)
    _check_framing(trainer.name, framing, meta.geometry)
    flip = trainer.flips and given.mirrored is not None
    return Subject(place, size, framing, plan.architecture, given.piece, flip)


def _check_framing(trainer: str, wanted: Framing, geometry: Geometry) -> None:
    """InputError unless the latents are of what the trainer makes of a picture."""
    size = geometry.source_width, geometry.source_height
    resized = geometry.resized or size
    crop = geometry.crop or (0, 0, *resized)
    pairs = zip((*wanted.resized, *wanted.crop[:2]), (*resized, *crop[:2]), strict=True)
    if crop[2:] == wanted.size and not any(geometry.pad) and all(abs(a - b) <= _NEAR for a, b in pairs):
        return
    width, height = wanted.size
    padded = ", padded" if any(geometry.pad) else ""
    raise InputError(
        f"{trainer} wants {_said(wanted.resized, wanted.crop)} of this picture of {size[0]}x{size[1]}, the latents are "
        f"of {_said(resized, crop)}{padded}; say how the trainer is set (--size, --buckets, --no-upscale), or begin "
        f"with the picture: tvae cache, or tvae encode --size {width}x{height} --fit cover"
    )


def _said(resized: tuple[int, int], crop: tuple[int, ...]) -> str:
    left, top, width, height = crop
    scaled = f"{resized[0]}x{resized[1]}"
    return scaled if (width, height) == resized else f"{width}x{height} at {left},{top} of {scaled}"
