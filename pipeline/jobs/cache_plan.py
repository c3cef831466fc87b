"""The plan of a cache job with its VAE: the trainer, the architecture, names and contents of files, their records."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
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
from tvae.pipeline.caches.spec import CLIP_OPTIONS, BucketSettings, Piece
from tvae.pipeline.caches.webdataset import MOST_BYTES, SHARD_BYTES
from tvae.pipeline.errors import InputError, UsageError
from tvae.pipeline.files.atomic import check_readable, discard, folder_error, publish, temporary_path, write_error
from tvae.pipeline.files.content_checksum import of_file
from tvae.pipeline.files.stored import fill
from tvae.pipeline.jobs.describe import identity, tool
from tvae.pipeline.jobs.job import Job
from tvae.pipeline.jobs.outputs import Item
from tvae.pipeline.jobs.scaling_room import room_to_scale
from tvae.pipeline.latents import SourceRecord
from tvae.pipeline.latents.tensor_file import check_finite, own_memory
from tvae.pipeline.media.decoders import decodes_file, version
from tvae.pipeline.media.orientation import Orientation
from tvae.pipeline.media.spec import MediaInfo
from tvae.pipeline.memory.amount import parse_size

if TYPE_CHECKING:
    from tvae.pipeline.session.model_info import Known

__all__ = ["CachePlan", "Staged"]


class Staged(NamedTuple):
    """A file that is complete under a temporary name."""

    temporary: Path
    path: Path
    record: FileRecord


@dataclass(frozen=True)
class CachePlan:
    """Raises UsageError for options that the trainer or the VAE has no room for."""

    job: Job
    model: Known
    same_names: SameNames = field(default_factory=lambda: SameNames(), compare=False, repr=False)

    def __post_init__(self) -> None:
        _check_plan(self)

    @property
    def request(self) -> CacheRequest:
        assert self.job.cache is not None, "a job that caches has one"
        return self.job.cache

    @cached_property
    def trainer(self) -> Trainer:
        return trainer_named(self.request.trainer)

    @cached_property
    def architecture(self) -> Architecture:
        return architecture_of(self.trainer, self.request.architecture, self.model.info)

    @cached_property
    def settings(self) -> BucketSettings:
        size = self.job.size or self.architecture.resolution
        return BucketSettings(self.architecture, size, self.request.buckets, self.request.upscale)

    @property
    def shard_bytes(self) -> int:
        """Largest size of a shard."""
        return SHARD_BYTES if self.request.shards is None else parse_size(self.request.shards)

    @property
    def root(self) -> Path:
        return Path(self.job.output or ".")

    @cached_property
    def posterior(self) -> str:
        """What is stored: *mean*, *sample*, or *none* for a VAE without a posterior."""
        return (self.request.posterior or self.architecture.posterior) if self.model.info.posterior else "none"

    def subject(self, place: PurePosixPath, info: MediaInfo, piece: Piece | None = None) -> Subject:
        """Describe an image or a piece of a video at a place below the output folder.

        Raises InputError for one that fits no bucket, and for one that the trainer takes for the other kind.
        """
        try:
            self.trainer.check_kind(place, info.kind)
        except ValueError as error:
            raise InputError(str(error)) from None
        size = self.trainer.sees(info)
        try:
            framing = self.trainer.frame(size, self.settings)
        except ValueError as error:
            raise InputError(f"no bucket of {self.trainer.name} takes it: {error}") from None
        return Subject(place, size, framing, self.architecture, piece, self.request.flip)

    def check_clips(self) -> None:
        """Raise InputError if videos cannot be cached."""
        if not self.architecture.clips:
            raise InputError(f"{self.trainer.name} caches images alone for {self.architecture.name}; this is a video")
        if self.trainer.bucketed_clips and not (self.request.buckets.on and self.request.upscale):
            raise InputError(
                f"{self.trainer.name} scales every video to its bucket; leave --buckets off and --no-upscale out"
            )

    def pixels(self, rgb: np.ndarray, info: MediaInfo, framing: Framing, *, mirrored: bool = False) -> np.ndarray:
        """Turn an upright frame, uint8 [H, W, 3 or 4], into the encoder's input by ``framed``.

        Raises InputError where there is not enough memory.

        Args:
            mirrored: Mirror the frame before it is scaled and cut.
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
        """Return the item with the place of its record for this trainer and architecture."""
        place = place_for(self.root, item.record, self.trainer.name, self.architecture.name)
        return replace(item, folder=place.parent, name=place.name)

    def record(self, source: Path) -> CacheRecord:
        """Return the record of a source, before it has files."""
        return CacheRecord(
            self.trainer.name,
            self.architecture.name,
            identity(self.model),
            SourceRecord.of(source),
            of_file(source),
            _with_decoder(self.options, self.trainer, source),
            tool=tool(),
        )

    def serves(self, place: Path, source: Path) -> CacheRecord | None:
        """Return the record of files that exist and need not be made again, or None."""
        found = self.begun(place, source)
        return found if found is not None and found.complete else None

    def begun(self, place: Path, source: Path) -> CacheRecord | None:
        """Return the same, also where only some pieces of a video exist.

        Raises `OutputError` where the record cannot be read: its files must not be taken for another program's.
        """
        try:
            found = read_record(place)
        except InputError:
            check_readable(place)
            return None
        options = _with_decoder(self.options, self.trainer, source, found.options)
        wanted = CacheRecord(self.trainer.name, self.architecture.name, identity(self.model), found.source, "", options)
        fits = found.made_of == wanted.made_of and all(file.stands(self.root) for file in found.files)
        return found if fits and found.of_source(source) else None

    def stage(self, subject: Subject, latents: list[Tensor], place: Path) -> list[Staged]:
        """Write the files of one subject, which ``commit`` gives their names.

        Raises InputError for values that are not finite and for files in the way that tvae did not write; OutputError.

        Args:
            latents: [C, t, h, w] of the image and, with flip, of the mirrored one.
            place: The path of its record.
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
                for leftover in (temporary, *(one.temporary for one in staged)):
                    discard(leftover)
                if isinstance(error, OSError):
                    raise write_error(path, error) from error
                raise
        return staged

    def commit(self, place: Path, record: CacheRecord, staged: Sequence[Staged] = ()) -> None:
        """Give files their names, and remove files of an older record that this one lacks. Raises OutputError.

        A kill at any point leaves each file whole or absent, and none that the record does not know.
        """
        stale = {name for name in _known_at(place) - record.known if self.is_entry(name)}
        result = place
        try:
            for one in staged:  # or an older file might pass for the one that the record describes
                one.path.unlink(missing_ok=True)
            write_record(place, replace(record, stale=tuple(sorted(stale))))
            self.same_names.take_over(record.known, place)
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
            for one in staged:
                discard(one.temporary)

    def is_entry(self, name: str) -> bool:
        """Return whether a file is latents of this trainer inside the output folder. A record that came with others'
        files may name any file of the user's."""
        inside = (self.root / name).parent.resolve().is_relative_to(self.root.resolve())
        return inside and self.trainer.is_entry(PurePosixPath(name))

    def check_own(self, path: Path, place: Path) -> None:
        """Raise InputError for a file that tvae did not write for this source, OutputError for a folder."""
        if path.is_dir() and not path.is_symlink():
            raise folder_error(path)
        if self.job.existing == "overwrite" or not os.path.lexists(path):
            return
        name = path.relative_to(self.root).as_posix()
        if name not in _known_at(place):
            raise self.same_names.why_not(path, name, place)

    def shown(self, place: Path) -> Path:
        """Return the first file of a record, by which users know it."""
        try:
            return self.root / read_record(place).files[0].file
        except (InputError, IndexError):
            return place

    @cached_property
    def options(self) -> dict[str, Any]:
        """All options that change latents."""
        request, settings = self.request, self.settings
        return {
            "size": list(settings.resolution),
            "buckets": [request.buckets.on, request.buckets.smallest, request.buckets.largest, settings.step],
            "upscale": request.upscale,
            "flip": request.flip,
            "posterior": self.posterior,
            "seed": self.job.seed if self.posterior == "sample" else None,
            "computed": str(self.model.dtype).removeprefix("torch."),
            **request.recorded_pieces,
            **({"alpha_mask": True} if request.alpha_mask else {}),  # records of before there was one are as good
            **({"revision": self.architecture.revision} if self.architecture.revision else {}),
        }


class SameNames:
    """Records of sources of one cache whose names differ only in the suffix: most trainers have one file for them.

    A run refuses two such inputs. But a source may have been replaced since an earlier run (a.png by a.jpg), whose
    record then lists a file that is another's. Folders are listed once. For many threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._names: dict[Path, dict[str, list[str]]] = {}

    def why_not(self, path: Path, name: str, place: Path) -> InputError:
        """Return why a file is not replaced by one of the source with the record at ``place``.

        Args:
            name: The file's place below the output folder.
        """
        for twin in self._of(place):
            if name in _known_at(twin):
                return InputError(
                    f"'{path}' was made of {twin.stem}, whose name differs in nothing but the suffix; rename one, or "
                    "pass --overwrite where that one has gone"
                )
        return InputError(f"'{path}' exists and tvae did not write it; move it away, or pass --overwrite")

    def take_over(self, names: set[str], place: Path) -> None:
        """Take files, by their places below the output folder, out of the records of other sources than the one with
        the record at ``place``. Raises `OSError`."""
        for twin in self._of(place):
            if _known_at(twin).isdisjoint(names):
                continue
            record = read_record(twin)
            files = tuple(file for file in record.files if file.file not in names)
            stale = tuple(one for one in record.stale if one not in names)
            if files or stale:
                write_record(twin, replace(record, files=files, stale=stale))
            else:
                twin.unlink(missing_ok=True)

    def _of(self, place: Path) -> list[Path]:
        with self._lock:
            if place.parent not in self._names:
                self._names[place.parent] = _by_stem(place.parent)
            names = self._names[place.parent].get(_stem(place.name), [])
        return [place.with_name(name) for name in names if name != place.name]


def _known_at(place: Path) -> set[str]:
    """Return the files that tvae wrote before for the source with this record."""
    try:
        return read_record(place).known
    except InputError:
        return set()


def _by_stem(folder: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    try:
        for name in os.listdir(folder):
            found[_stem(name)].append(name)
    except OSError:
        pass  # there is none yet, or what is wrong with it is told when a record is written
    return found


def _stem(name: str) -> str:
    """Return the stem of a source's name from its record's, which has one suffix more."""
    return PurePosixPath(PurePosixPath(name).stem).stem.casefold()


def _with_decoder(
    options: dict[str, Any], trainer: Trainer, source: Path, older: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return a record's options with the trainer's own decoder and its version, if that decodes the source.

    Raises `OSError`.

    Args:
        older: Options of the existing record. Files made with a decoder that is not installed any more stay valid:
            what would replace them is farther from the trainer's own.
    """
    if trainer.decoder is None or not decodes_file(source):
        return options
    if (installed := version()) is not None:
        return options | {"decoder": f"{trainer.decoder} {installed}"}
    return options | ({"decoder": older["decoder"]} if older is not None and "decoder" in older else {})


def _check_plan(plan: CachePlan) -> None:
    """Raise UsageError for options that the trainer or the VAE has no room for."""
    request, trainer, info = plan.request, plan.trainer, plan.model.info
    if request.flip and not trainer.flips:
        raise UsageError(f"{trainer.name} keeps no mirrored images in its cache; leave --flip out")
    if request.alpha_mask and not trainer.alpha_masks:
        raise UsageError(f"{trainer.name} keeps no alpha in its cache; leave --alpha-mask out")
    _check_pieces(request, trainer)
    if request.cuts_clips and not plan.architecture.clips:
        raise UsageError(f"{trainer.name} caches images alone for {plan.architecture.name}; leave {CLIP_OPTIONS} out")
    if request.shards is not None and not trainer.shards:
        raise UsageError(f"{trainer.name} reads a file of each source, and no shards; leave --shards out")
    if plan.shard_bytes > MOST_BYTES:
        raise UsageError(f"--shards {request.shards}: a shard has at most {MOST_BYTES} bytes")
    width, height = plan.settings.resolution
    if trainer.square and width != height:
        raise UsageError(f"the resolution of {trainer.name} is one number: --size {width}x{width}")
    if trainer.enlarges and not request.upscale:
        raise UsageError(f"{trainer.name} enlarges all small images; leave --no-upscale out")
    if request.buckets.smallest is not None and not trainer.ranges:
        raise UsageError(f"{trainer.name} has no range of buckets to set; pass --buckets on or off")
    if trainer.one_piece and request.stride is not None:
        raise UsageError(f"{trainer.name} keeps one file of each video and cannot tell pieces apart; drop --stride")
    if plan.architecture.space == "model" and info.space.unknown is not None:
        raise UsageError(
            f"{trainer.name} caches model space for {plan.architecture.name}, and nothing is known of that of VAE "
            f"'{info.id}': {info.space.unknown}; say which model it is of (--vae-of)"
        )
    grid = info.spatial_factor * (info.space.patch if plan.architecture.space == "model" else 1)
    if plan.settings.step % grid:
        raise UsageError(f"sides of buckets in steps of {plan.settings.step} are no multiples of {grid}, of this VAE")
    if (trainer.one_size or not request.buckets.on) and (width % grid or height % grid):
        raise UsageError(f"--size {width}x{height} is no multiple of {grid}, which this VAE needs without buckets")
    _check_frames(plan)


def _check_pieces(request: CacheRequest, trainer: Trainer) -> None:
    """Raise UsageError for options of another trainer."""
    if trainer.frame_extraction:
        return
    for name, value in (("frame_sample", request.frame_sample), ("max_frames", request.max_frames)):
        if value is not None:
            raise UsageError(f"{trainer.name} has no {name}; leave --{name.replace('_', '-')} out")
    if max(len(request.frames or ()), len(request.stride or ())) > 1:
        raise UsageError(f"{trainer.name} does not tell pieces of several lengths apart; name one with --frames")


def _check_frames(plan: CachePlan) -> None:
    request, info = plan.request, plan.model.info
    if info.temporal_factor is None:
        return
    for frames in request.frames or ():
        over = (frames - info.lead_frames) % info.temporal_factor
        if over or frames < info.lead_frames:
            shorter = max(frames - over, info.lead_frames or info.temporal_factor)
            raise UsageError(
                f"--frames {frames}: this VAE takes {info.lead_frames} + a multiple of {info.temporal_factor}, "
                f"such as {shorter} or {shorter + info.temporal_factor}"
            )
