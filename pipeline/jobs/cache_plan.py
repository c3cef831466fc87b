"""What a cache job comes to with its VAE: the trainer, the architecture, names and contents of files, their records."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tvae.pipeline.caches import Architecture, CacheRequest, Framing, Subject, Trainer, architecture_of, trainer_named
from tvae.pipeline.caches.pixels import framed, over_white
from tvae.pipeline.caches.record import CacheRecord, FileRecord, place_for, read_record, write_record
from tvae.pipeline.caches.spec import BucketSettings, Piece, Size
from tvae.pipeline.caches.webdataset import SHARD_BYTES
from tvae.pipeline.errors import InputError
from tvae.pipeline.files.atomic import check_readable, discard, folder_error, publish, temporary_path, write_error
from tvae.pipeline.files.content_checksum import of_file
from tvae.pipeline.files.stored import fill
from tvae.pipeline.jobs.cache_checks import check_plan
from tvae.pipeline.jobs.cache_decoder import with_decoder
from tvae.pipeline.jobs.cache_twins import Twins, known_at
from tvae.pipeline.jobs.describe import bits, identity, tool
from tvae.pipeline.jobs.job import Job
from tvae.pipeline.jobs.outputs import Item
from tvae.pipeline.jobs.scaling_room import room_to_scale
from tvae.pipeline.latents import SourceRecord
from tvae.pipeline.latents.tensor_file import check_finite, own_memory
from tvae.pipeline.media.orientation import Orientation
from tvae.pipeline.media.spec import MediaInfo
from tvae.pipeline.memory.amount import parse_size

if TYPE_CHECKING:
    from tvae.pipeline.session.model_info import Known

__all__ = ["CachePlan", "Staged"]


class Staged(NamedTuple):
    """A file that is complete but for its name."""

    temporary: Path
    path: Path
    record: FileRecord


def drop(staged: Sequence[Staged]) -> None:
    """Remove those that have not got their names."""
    for one in staged:
        discard(one.temporary)


@dataclass(frozen=True)
class CachePlan:
    """Raises UsageError, when it is made, for what the trainer has no room for."""

    job: Job
    model: Known
    """To be asked what it is."""
    twins: Twins = field(default_factory=Twins, compare=False, repr=False)

    def __post_init__(self) -> None:
        check_plan(self)

    @property
    def request(self) -> CacheRequest:
        """What was asked for."""
        assert self.job.cache is not None, "a job that caches has one"
        return self.job.cache

    @cached_property
    def trainer(self) -> Trainer:
        """Whose cache it is."""
        return trainer_named(self.request.trainer)

    @cached_property
    def architecture(self) -> Architecture:
        """For which the latents are."""
        return architecture_of(self.trainer, self.request.architecture, self.model.info)

    @cached_property
    def settings(self) -> BucketSettings:
        """What buckets are made from."""
        size = self.job.size or self.architecture.resolution
        return BucketSettings(self.architecture, size, self.request.buckets, self.request.upscale)

    @property
    def shard_bytes(self) -> int:
        """Largest size of a shard."""
        return SHARD_BYTES if self.request.shards is None else parse_size(self.request.shards)

    @property
    def root(self) -> Path:
        """The output folder."""
        return Path(self.job.output or ".")

    @cached_property
    def posterior(self) -> str:
        """What is stored: *mean*, *sample*, or *none* of a VAE that gives a point."""
        return (self.request.posterior or self.architecture.posterior) if self.model.info.posterior else "none"

    def subject(self, place: PurePosixPath, info: MediaInfo, piece: Piece | None = None) -> Subject:
        """An image or a piece of a video. place: below the output folder. Raises InputError for want of a bucket, and
        for what the trainer takes for the other kind."""
        try:
            self.trainer.check_kind(place, info.kind)
        except ValueError as error:
            raise InputError(str(error)) from None
        size = self.trainer.sees(info)
        return Subject(place, size, self.framing(size), self.architecture, piece, self.request.flip)

    def framing(self, size: Size) -> Framing:
        """The trainer's, of a picture that it sees in this size. Raises InputError for want of a bucket."""
        try:
            return self.trainer.frame(size, self.settings)
        except ValueError as error:
            raise InputError(f"no bucket of {self.trainer.name} takes it: {error}") from None

    def check_clips(self) -> None:
        """InputError where videos cannot be cached."""
        if not self.architecture.clips:
            raise InputError(f"{self.trainer.name} caches images alone for {self.architecture.name}; this is a video")
        if self.trainer.bucketed_clips and not (self.request.buckets.on and self.request.upscale):
            raise InputError(
                f"{self.trainer.name} scales every video to its bucket; leave --buckets off and --no-upscale out"
            )

    def pixels(self, rgb: np.ndarray, info: MediaInfo, framing: Framing, *, mirrored: bool = False) -> np.ndarray:
        """uint8 [H, W, 3] of an upright frame to what the encoder sees: see ``framed``. InputError for want of memory.

        mirrored: of its mirror image, which is scaled and cut in the same way.
        """
        if rgb.shape[2] == 4 and self.trainer.over_white:
            # grey ones with alpha, and colours that stand for none, are no alpha channel to these trainers
            plain = info.pix_fmt.startswith(("rgb24", "rgb48", "ya"))
            rgb = rgb[..., :3] if plain else over_white(np.ascontiguousarray(rgb))
        if self.trainer.weighs_alpha and not info.pix_fmt.startswith("rgba"):
            rgb = rgb[..., :3]  # other modes lose it before
        if self.trainer.leaves_turned(info):
            rgb = Orientation(-info.rotation % 360).apply(rgb)
            rgb = rgb[:, ::-1] if info.mirrored else rgb
        rgb = rgb[:, ::-1] if mirrored else rgb
        with room_to_scale(info.path, (rgb.shape[1], rgb.shape[0]), framing.resized, framing.filter, self.job):
            found = framed(rgb, framing)
        return np.ascontiguousarray(found[..., :3]) if self.trainer.weighs_alpha else found

    def own(self, item: Item) -> Item:
        """The same with the place of its record for this trainer and architecture."""
        place = place_for(self.root, item.record, self.trainer.name, self.architecture.name)
        return replace(item, folder=place.parent, name=place.name)

    def record(self, source: Path) -> CacheRecord:
        """Of the files that this job makes of a source, before there are any."""
        return CacheRecord(
            self.trainer.name,
            self.architecture.name,
            identity(self.model),
            SourceRecord.of(source),
            of_file(source),
            with_decoder(self.options, self.trainer, source),
            tool=tool(),
        )

    def serves(self, place: Path, source: Path) -> CacheRecord | None:
        """The record of files that are there already and need not be made again."""
        found = self.begun(place, source)
        return found if found is not None and found.complete else None

    def begun(self, place: Path, source: Path) -> CacheRecord | None:
        """The same, also where only some pieces of a video are there. `OutputError` where the record is unreadable: its
        files are then not to be taken for another program's."""
        try:
            found = read_record(place)
        except InputError:
            check_readable(place)
            return None
        options = with_decoder(self.options, self.trainer, source, found.options)
        wanted = CacheRecord(self.trainer.name, self.architecture.name, identity(self.model), found.source, "", options)
        fits = found.made_of == wanted.made_of and all(file.stands(self.root) for file in found.files)
        return found if fits and found.of_source(source) else None

    def stage(self, subject: Subject, latents: list[Tensor], place: Path) -> list[Staged]:
        """Writes the files of one subject, which get their names in ``commit``. latents: [C, t, h, w], as many as are
        wanted. place: of its record.

        InputError for values that are not finite and for files in the way that tvae did not write; OutputError.
        """
        check_finite({str(number): one for number, one in enumerate(latents)}, subject.source.name)
        kind = self.architecture.dtype
        stored = [own_memory(one if kind is None else one.to(getattr(torch, kind))) for one in latents]
        staged: list[Staged] = []
        files = self.trainer.files(subject)
        for name, content in zip(files, self.trainer.contents(subject, stored), strict=True):
            path = self.root / name
            temporary = temporary_path(path)
            try:
                self.check_own(path, place)
                path.parent.mkdir(parents=True, exist_ok=True)
                fill(temporary, content)
                staged.append(Staged(temporary, path, FileRecord.of(temporary, name)))
            except BaseException as error:  # whatever it is, no file is left behind
                discard(temporary)
                drop(staged)
                if isinstance(error, OSError):
                    raise write_error(path, error) from error
                raise
        return staged

    def commit(self, place: Path, record: CacheRecord, staged: Sequence[Staged] = ()) -> None:
        """Gives files their names. Files of an older record that are not among this one's go. OutputError.

        Killed at any point, it leaves each file whole or absent, and none that the record does not know.
        """
        stale = {name for name in known_at(place) - record.known if self.is_entry(name)}
        result = place
        try:
            for one in staged:  # or an older file might pass for the one that the record describes
                one.path.unlink(missing_ok=True)
            write_record(place, replace(record, stale=tuple(sorted(stale))))
            self.twins.give_up(record.known, place)
            for one in staged:
                result = one.path
                publish(one.temporary, result)
            if stale and record.complete:
                for name in stale:
                    (self.root / name).unlink(missing_ok=True)
                write_record(place, record)
        except OSError as error:
            raise write_error(result, error) from error
        finally:
            drop(staged)

    def is_entry(self, name: str) -> bool:
        """Is it latents of this trainer, in no folder elsewhere? A record that came with others' files may name any of
        a user's."""
        inside = (self.root / name).parent.resolve().is_relative_to(self.root.resolve())
        return inside and self.trainer.is_entry(PurePosixPath(name))

    def check_own(self, path: Path, place: Path) -> None:
        """InputError for a file not written by tvae of this source, OutputError for a folder. place: of its record."""
        if path.is_dir() and not path.is_symlink():
            raise folder_error(path)
        if self.job.existing == "overwrite" or not os.path.lexists(path):
            return
        name = path.relative_to(self.root).as_posix()
        if name not in known_at(place):
            raise self.twins.why_not(path, name, place)

    def shown(self, place: Path) -> Path:
        """What a user knows files by of which there is a record: the first of them."""
        try:
            return self.root / read_record(place).files[0].file
        except (InputError, IndexError):
            return place

    @cached_property
    def options(self) -> dict[str, Any]:
        """All that was asked for and changes latents."""
        request, settings = self.request, self.settings
        return {
            "size": list(settings.resolution),
            "buckets": [request.buckets.on, request.buckets.smallest, request.buckets.largest, settings.step],
            "upscale": request.upscale,
            "flip": request.flip,
            "posterior": self.posterior,
            "seed": self.job.seed if self.posterior == "sample" else None,
            "computed": str(self.model.dtype).removeprefix("torch."),
            **bits(self.job),
            **request.recorded_pieces,
            **({"alpha_mask": True} if request.alpha_mask else {}),  # records of before there was one are as good
            **({"revision": self.architecture.revision} if self.architecture.revision else {}),
        }
