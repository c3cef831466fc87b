"""Values of a trainer's cache, and all that is known of them: what would have to be guessed is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, NamedTuple, NoReturn, TypeVar

from tvae.pipeline.caches import CacheRequest, Framing
from tvae.pipeline.caches.buckets import covering
from tvae.pipeline.caches.record import CacheRecord
from tvae.pipeline.caches.spec import Latents, Piece, Size, Wish
from tvae.pipeline.errors import InputError
from tvae.pipeline.files.content_checksum import of_file
from tvae.pipeline.files.record import from_json, to_json
from tvae.pipeline.jobs.conversion.cached import CacheFiles, CacheFolder, EntryFile
from tvae.pipeline.jobs.conversion.given import Cached, Given, Taken, checksum_of
from tvae.pipeline.jobs.describe import identity, tool
from tvae.pipeline.jobs.lengths import frame_count
from tvae.pipeline.jobs.outputs import Item
from tvae.pipeline.jobs.reading import blame_input
from tvae.pipeline.latents import Geometry, LatentsMeta, PosteriorRecord, SourceRecord, SpaceRecord
from tvae.pipeline.latents.foreign import tensors_in
from tvae.pipeline.latents.meta import PosteriorKind
from tvae.pipeline.latents.tensor_file import own_memory
from tvae.pipeline.latents.verify import MadeBy
from tvae.pipeline.media.formats import listed
from tvae.pipeline.media.spec import MediaInfo

if TYPE_CHECKING:
    from torch import Tensor

    from tvae.pipeline.media.sandbox import Sandbox
    from tvae.pipeline.session.model_info import Known

__all__ = ["Entries"]

T = TypeVar("T")

_STORED = ("float32", "bfloat16", "float16")


class _Read(NamedTuple):
    """Of one file, or of a file and that of the mirrored image."""

    file: EntryFile
    latents: Latents
    mirrored: Tensor | None
    bucket: Size
    """In pixels."""
    left_out: str | None
    """See ``Trainer``."""


@dataclass(frozen=True)
class Entries:
    """Reads what a folder lists. size, request: how the trainer is set, as far as it was said."""

    folder: CacheFolder
    request: CacheRequest
    size: Size | None
    model: Known
    sandbox: Sandbox
    max_pixels: int
    other_vae: bool = False

    def taken(self, item: Item, found: CacheFiles) -> Taken:
        """Raises InputError."""
        info = self._info(found)
        size = self._size(found, info)
        files = [one for one in found.files if one.entry.size in (None, size)]
        pieces = dict[tuple[int, int] | None, list[EntryFile]]()
        for file in files:
            pieces.setdefault(file.entry.frames, []).append(file)
        checksum, content = checksum_of(one.path for one in files), self._check_source(found)
        source = self._origin(item, found)
        given = []
        for _, alike in sorted(pieces.items(), key=lambda one: one[0] or (0, 0)):
            read = self._chosen([one for file in alike for one in self._read(file)], size)
            given.append(self._given(read, size, info, source, found.record, checksum))
        return Taken(given[0].meta, lambda: given, checksum, len(given), content)

    def _info(self, found: CacheFiles) -> MediaInfo | None:
        if found.picture is None:
            return None
        with blame_input(), self.sandbox.open_reader(found.picture, self.max_pixels) as reader:
            return reader.info

    def _size(self, found: CacheFiles, info: MediaInfo | None) -> Size:
        """Of the whole picture, as the trainer sees it."""
        for file in found.files:
            if file.entry.size is not None:
                _checked(Geometry(*file.entry.size), file, "size")
        said = sorted({file.entry.size for file in found.files if file.entry.size is not None})
        if info is not None:
            seen = self.folder.trainer.sees(info)
            if said and seen not in said:
                raise InputError(
                    f"'{found.picture}' is {seen[0]}x{seen[1]}, and its cache is of {said[0][0]}x{said[0][1]}: it has "
                    "changed; cache it again"
                )
            return seen
        if not said:
            self._want(found, "size", "picture" if found.files[0].entry.frames is None else "video")
        if len(said) > 1:
            raise InputError(
                f"there are caches of {len(said)} sizes of it; pass the folder of the images with --source"
            )
        return said[0]

    def _want(self, found: CacheFiles, what: str, of: str) -> NoReturn:
        raise InputError(
            f"{self.folder.trainer.name} does not keep the {what} of a {of}, and there is none that "
            f"'{found.files[0].path}' was made of: pass the folder of the {of}s with --source"
        )

    def _check_source(self, found: CacheFiles) -> str:
        """Checksum of the picture's bytes, where it is at hand. InputError where tvae's record says that something is
        another by now."""
        record, path = found.record, found.picture
        if record is not None:
            made_by = MadeBy(self.model.info.class_name, self.model.info.weights_sha256, self.model.info.values)
            if not (self.other_vae or made_by.made(record.vae)):
                raise InputError(f"it was made by another VAE, '{record.vae.id}'; pass --vae, or --allow-other-vae")
            kept = {file.file: file.checksum for file in record.files}
            for one in found.files:
                name = one.path.relative_to(self.folder.root).as_posix()
                if name in kept and of_file(one.path) != kept[name]:
                    raise InputError(f"'{one.path}' is damaged: its content is not what was written")
            by_name = listed(PurePosixPath(record.source.name).suffix)  # else it is known by another cache's file
            if path is not None and by_name and not record.of_source(path):
                raise InputError(f"its source '{path}' has changed; cache it again")
            return record.content
        return "" if path is None else of_file(path)

    def _origin(self, item: Item, found: CacheFiles) -> SourceRecord:
        if found.picture is not None:
            return SourceRecord.of(found.picture)
        if found.record is not None:
            return found.record.source
        assert item.below is not None, "an item of a cache has a place"
        status = found.files[0].path.stat()
        return SourceRecord(item.below.name, status.st_size, status.st_mtime_ns)

    def _read(self, file: EntryFile) -> list[_Read]:
        """All sizes that it holds."""
        info, architecture, trainer = self.model.info, self.folder.architecture, self.folder.trainer
        try:
            tensors = tensors_in(file.path)
            found = trainer.values(tensors)
        except ValueError as error:
            raise InputError(f"'{file.path}': {error}") from None
        if not found:
            raise InputError(f"'{file.path}' holds no latents as {trainer.name} keeps them")
        patch = info.space.patch if architecture.space == "model" else 1
        left_out = trainer.left_out(tensors)
        channels, grid, read = info.latent_channels * patch**2, info.spatial_factor * patch, []
        for latents in found:
            for one in latents:
                if one.ndim != 4 or one.shape[0] != channels or 0 in one.shape or not one.is_floating_point():
                    kind, shape = str(one.dtype).removeprefix("torch."), list(one.shape)
                    told = (
                        f"latents of {channels} channels were expected, as floating-point numbers, not {kind} {shape}"
                    )
                    raise InputError(f"'{file.path}': {told}")
            if len({one.shape for one in latents}) > 1:
                raise InputError(f"'{file.path}': the latents of the mirrored image have another shape")
            height, width = latents[0].shape[-2:]
            mirrored = latents[1] if len(latents) > 1 else None
            read.append(_Read(file, latents, mirrored, (width * grid, height * grid), left_out))
        return read

    def _chosen(self, read: Sequence[_Read], size: Size) -> _Read:
        """The one of the size that the trainer is set to, or the only one."""
        plain = [one for one in read if not one.file.entry.mirrored]
        buckets = {one.bucket for one in plain}
        if len(plain) > 1:
            wanted = self._framing(size)
            plain = [one for one in plain if wanted is not None and one.bucket == wanted.size]
        if len(plain) != 1:
            sizes = ", ".join(f"{width}x{height}" for width, height in sorted(buckets)) or "the mirrored image alone"
            raise InputError(f"its cache holds {sizes}; say with --size and --buckets how the trainer is set")
        (found,) = plain
        alike = [one for one in read if one.file.entry.mirrored and one.file.entry.framing == found.file.entry.framing]
        if alike and alike[0].latents[0].shape != found.latents[0].shape:
            raise InputError(f"'{alike[0].file.path}': the latents of the mirrored image have another shape")
        return found._replace(mirrored=alike[0].latents[0]) if alike else found

    def _framing(self, size: Size) -> Framing | None:
        """The trainer's, as it is set; None where it takes no such picture."""
        architecture, request = self.folder.architecture, self.request
        wish = Wish(architecture, self.size or architecture.resolution, request.buckets, request.upscale)
        try:
            return self.folder.trainer.frame(size, wish)
        except ValueError:
            return None

    def _given(
        self,
        read: _Read,
        size: Size,
        info: MediaInfo | None,
        source: SourceRecord,
        record: CacheRecord | None,
        checksum: str,
    ) -> Given:
        (value, *_), entry, trainer = read.latents, read.file.entry, self.folder.trainer
        is_clip = entry.frames is not None or value.shape[1] > 1 or (info is not None and info.kind == "video")
        if info is not None and info.kind != ("video" if is_clip else "image"):
            raise InputError(f"'{read.file.path}' is of a {'video' if is_clip else 'picture'}, and its source is none")
        piece = self._piece(value.shape[1], entry.frames, info, record, read) if is_clip else None
        turned = info is not None and trainer.leaves_turned(info)
        upright = None if turned else info
        start = 0 if piece is None else piece.start
        cached = _checked(Cached(trainer.name, self.folder.architecture.name, turned, start), read.file, "piece")
        rate = None if piece is None else Fraction(piece.fps).limit_denominator(1 << 16)
        kind = str(value.dtype).removeprefix("torch.")
        meta = LatentsMeta(
            kind="video" if is_clip else "image",
            vae=identity(self.model),
            space=SpaceRecord(self.folder.architecture.space, self.model.info.space.to_json()),
            posterior=PosteriorRecord(self._posterior(record)),
            dtype=kind if kind in _STORED else "float32",
            source=source,
            geometry=_checked(_geometry(size, self._seen(size, read)), read.file, "size"),
            rotation=0 if upright is None else upright.rotation,
            mirrored=upright is not None and upright.mirrored,
            time_base=None if rate is None else 1 / rate,
            frame_rate=rate,
            options={"cache": to_json(cached), "latents": checksum},
            tool=tool(),
        )
        plain, mirrored = (
            None if one is None else own_memory(one if kind in _STORED else one.float())
            for one in (value, read.mirrored)
        )
        assert plain is not None
        notices = () if read.left_out is None else (read.left_out,)
        return Given(meta, {"latents": plain}, piece, mirrored=mirrored, notices=notices)

    def _seen(self, size: Size, read: _Read) -> Framing:
        """What the latents are of: as the file says, as the trainer does it, or, where that was set otherwise, as
        trainers do it."""
        said, wanted = read.file.entry.framing, self._framing(size)
        for one in (said, wanted):
            if one is not None and one.size == read.bucket:
                return one
        return covering(size, read.bucket)

    def _piece(
        self,
        latent_frames: int,
        frames: tuple[int, int] | None,
        info: MediaInfo | None,
        record: CacheRecord | None,
        read: _Read,
    ) -> Piece:
        if info is None:
            self._want(CacheFiles((read.file,), None), "frame rate", "video")
        wanted = self.request.target_fps if record is None else _kept_rate(record)
        rate = float(info.frame_rate or 0) or wanted or 1.0
        held = frame_count(self.model.info, latent_frames, True)
        start, count = frames or (0, held)
        if count != held:
            raise InputError(f"'{read.file.path}' is called as one of {count} frames, and its latents are of {held}")
        return Piece(start, count, min(rate, wanted or rate))

    def _posterior(self, record: CacheRecord | None) -> PosteriorKind:
        if not self.model.info.posterior:
            return "none"
        match None if record is None else record.options.get("posterior"):
            case "mean" | "sample" as said:
                return said
        return self.folder.architecture.posterior


def _kept_rate(record: CacheRecord) -> float | None:
    """Frames a second that were kept of a faster video, as a record of tvae says."""
    match record.options.get("pieces"):
        case [_, _, _, float() | int() as rate] if rate > 0:
            return float(rate)
    return None


def _checked(value: T, file: EntryFile, what: str) -> T:
    """The same. InputError for numbers that tvae would not read again: of a file that is called what none can be."""
    try:
        return from_json(type(value), to_json(value), what)
    except ValueError as error:
        raise InputError(f"'{file.path}' is of no {what} that there is: {error}") from None


def _geometry(size: Size, framing: Framing) -> Geometry:
    resized = None if framing.resized == size else framing.resized
    whole = framing.crop == (0, 0, *framing.resized)
    return Geometry(*size, resized, None if whole else framing.crop)
