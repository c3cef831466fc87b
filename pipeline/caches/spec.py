"""The request for a cache, and what a trainer's file in ``trainers/`` says: architectures, buckets, names, contents."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tvae.pipeline.errors import UsageError
from tvae.pipeline.files.stored import Stored
from tvae.pipeline.media.decoders import Decoder
from tvae.pipeline.media.formats import Kind
from tvae.pipeline.memory.amount import parse_size

if TYPE_CHECKING:
    from torch import Tensor

    from tvae.pipeline.media.spec import MediaInfo

__all__ = [
    "CLIP_OPTIONS",
    "WEBDATASET",
    "Architecture",
    "BucketSettings",
    "Buckets",
    "CacheRequest",
    "Filter",
    "Framing",
    "Latents",
    "Piece",
    "Size",
    "Subject",
    "Trainer",
    "covering",
    "floored",
    "kept_count",
    "kept_frames",
    "nearest",
    "pieces_of",
]

WEBDATASET = "webdataset"
"""The trainer name that stands for shards."""
CLIP_OPTIONS = "--frames, --stride, --start, --frame-sample, --max-frames and --target-fps"

Size = tuple[int, int]
"""(width, height) in pixels."""

Filter = Literal["area", "linear", "lanczos", "bicubic", "cubic"]
"""Interpolation: *area* and *linear* as OpenCV's INTER_AREA and INTER_LINEAR, *lanczos* and *bicubic* as Pillow's,
*cubic* as PyTorch's antialiased bicubic interpolation of floats."""


@dataclass(frozen=True)
class Buckets:
    """Sizes that images are sorted into. None: the trainer's default."""

    on: bool = True
    """Off: every image gets the one size that was asked for."""
    smallest: int | None = None
    largest: int | None = None
    """Smallest and largest side in pixels."""
    step: int | None = None
    """Sides are multiples of it."""

    @classmethod
    def parse(cls, text: str) -> Buckets:
        """Read ``on``, ``off``, ``256-2048`` or ``256-2048/64``. Raises UsageError."""
        if text in ("on", "off"):
            return cls(text == "on")
        match = re.fullmatch(r"(\d{1,6})-(\d{1,6})(?:/(\d{1,4}))?", text, re.ASCII)
        if match is None:
            raise UsageError(f"--buckets {text} is none of on, off, MIN-MAX and MIN-MAX/STEP, such as 256-2048/64")
        smallest, largest = int(match[1]), int(match[2])
        step = None if match[3] is None else int(match[3])
        if not 0 < smallest <= largest or step == 0:
            raise UsageError(f"--buckets {text}: sides grow from 1 up, MIN is at most MAX and STEP at least 1")
        return cls(True, smallest, largest, step)

    def __str__(self) -> str:
        """Return the text that ``parse`` reads."""
        if self.smallest is None:
            return "on" if self.on else "off"
        return f"{self.smallest}-{self.largest}" + ("" if self.step is None else f"/{self.step}")


@dataclass(frozen=True)
class CacheRequest:
    """Options of ``tvae cache``. Raises UsageError for options that contradict each other."""

    trainer: str
    architecture: str | None = None
    """The diffusion model, as the trainer calls it; None: the only one that the VAE suits."""
    buckets: Buckets = Buckets()
    upscale: bool = True
    """Enlarge images that are smaller than their bucket."""
    flip: bool = False
    """Cache each image mirrored left-right, too."""
    alpha_mask: bool = False
    """Cache the alpha of each image, too, by which the trainer weighs its loss."""
    posterior: Literal["mean", "sample"] | None = None
    """What is stored of the encoder's distribution; None: what the trainer stores."""
    frames: tuple[int, ...] | None = None
    """Lengths of the pieces of a video; None: one piece, as long as the VAE takes it."""
    stride: tuple[int, ...] | None = None
    """Frames from the beginning of a piece to that of the next: one number for all lengths, or one for each. None: one
    piece of each length."""
    start: int = 0
    """First frame of the first piece."""
    target_fps: float | None = None
    """Frames a second that are kept of a faster video; None: all."""
    shards: str | None = None
    """Largest size of a shard, such as ``1GB``; None: 1 GB."""
    frame_sample: int | None = None
    """Number of pieces of each length, spread evenly over the video; those that begin with the same frame are one.
    None: as ``stride`` says."""
    max_frames: int | None = None
    """Length of a video that is one piece, from ``start`` on; None: all frames."""

    def __post_init__(self) -> None:
        if self.posterior not in (None, "mean", "sample"):
            raise UsageError(f"posterior '{self.posterior}' is not one of mean, sample")
        if self.start < 0:
            raise UsageError(f"--start {self.start} is not a frame; they are numbered from 0")
        self._check_pieces()
        if self.target_fps is not None and not 0 < self.target_fps < 1e4:
            raise UsageError(f"--target-fps {self.target_fps} is not a frame rate; it must be above 0")
        if self.shards is not None:
            parse_size(self.shards)

    def _check_pieces(self) -> None:
        counts = {"frames": self.frames, "stride": self.stride}
        counts |= {name: None if n is None else (n,) for name, n in self._of_one_trainer().items()}
        for name, values in counts.items():
            if values is not None and min(values, default=0) < 1:
                raise UsageError(f"--{name} {_joined(values)} is too small; it counts from 1 up")
        if self.frames is None:
            for name in ("stride", "frame-sample"):
                if counts[name] is not None:
                    raise UsageError(f"--{name} cuts videos into pieces; say how long they are with --frames")
            return
        if len({*self.frames}) < len(self.frames):
            raise UsageError(f"--frames {_joined(self.frames)} names a length twice")
        if self.max_frames is not None:
            raise UsageError("--max-frames is of videos in one piece; leave it or --frames out")
        if self.stride is not None and len(self.stride) not in (1, len(self.frames)):
            raise UsageError(
                f"--stride {_joined(self.stride)}: name one, or one for each length of --frames {_joined(self.frames)}"
            )
        if self.stride is not None and self.frame_sample is not None:
            raise UsageError("--stride and --frame-sample both say where pieces begin; leave one of them out")

    def _of_one_trainer(self) -> dict[str, int | None]:
        return {"frame-sample": self.frame_sample, "max-frames": self.max_frames}

    @property
    def cuts_clips(self) -> bool:
        """Return whether an option says anything about videos."""
        return bool(self.frames or self.start or self.target_fps or self.max_frames)

    @property
    def recorded_pieces(self) -> dict[str, Any]:
        """The options about videos, as records hold them. A single length is a number there."""
        each = (one if one is None or len(one) > 1 else one[0] for one in (self.frames, self.stride))
        pieces = [*([*one] if isinstance(one, tuple) else one for one in each), self.start, self.target_fps]
        more = {name.replace("-", "_"): value for name, value in self._of_one_trainer().items() if value is not None}
        return {"pieces": pieces, **more}


def _joined(numbers: tuple[int, ...]) -> str:
    return ",".join(map(str, numbers))


@dataclass(frozen=True)
class Architecture:
    """A diffusion model as a trainer knows it, and its demands on latents."""

    name: str
    classes: tuple[str, ...] | None
    """VAE classes in diffusers; None: any."""
    channels: int | None
    """Channels of raw latents; None: any number."""
    factor: int | None
    """Pixels of a raw latent, along each side; None: any number."""
    space: Literal["raw", "model"]
    posterior: Literal["mean", "sample"]
    resolution: Size
    """Default of the request."""
    dtype: str | None = None
    """Stored type; None: that of the computation."""
    step: int = 64
    """Sides of buckets are multiples of it."""
    constants: tuple[float, float] | None = None
    """Scaling and shift of an AutoencoderKL that tell this VAE from others of its shape."""
    clips: bool = False
    """Videos are cached, too."""
    label: str = ""
    """A second name, where the trainer has one."""
    revision: int = 0
    """Number of times that tvae's files of it were found wrong: those of an older revision are made again."""
    note: str | None = None
    """A line for users of these caches."""


@dataclass(frozen=True)
class BucketSettings:
    """The settings that buckets are made from."""

    architecture: Architecture
    resolution: Size
    buckets: Buckets
    upscale: bool

    @property
    def step(self) -> int:
        """Sides of buckets are multiples of it."""
        return self.buckets.step or self.architecture.step


@dataclass(frozen=True)
class Framing:
    """From an image to the encoder's input: a change of size, then a crop."""

    resized: Size
    crop: tuple[int, int, int, int]
    """(left, top, width, height)."""
    filter: Filter

    @property
    def size(self) -> Size:
        """Size of the encoder's input."""
        return self.crop[2], self.crop[3]


def floored(number: int, step: int) -> int:
    """Return the largest multiple of ``step`` that is not above ``number``."""
    return number - number % step


def nearest(sizes: Sequence[Size], size: Size) -> Size:
    """Return the first of the sizes whose ratio of width to height differs least."""
    ratio = size[0] / size[1]
    return min(sizes, key=lambda candidate: abs(candidate[0] / candidate[1] - ratio))


def covering(size: Size, bucket: Size) -> Framing:
    """Scale an image until it just covers its bucket, then cut both sides alike.

    Smaller by area, larger by Lanczos. Sides are rounded half up.
    """
    scale = max(bucket[0] / size[0], bucket[1] / size[1])
    resized = int(size[0] * scale + 0.5), int(size[1] * scale + 0.5)
    left, top = (resized[0] - bucket[0]) // 2, (resized[1] - bucket[1]) // 2
    return Framing(resized, (left, top, *bucket), "lanczos" if scale > 1 else "area")


@dataclass(frozen=True)
class Piece:
    """Consecutive frames of a video. fps: of the frames that are kept."""

    start: int
    frames: int
    fps: float


@dataclass(frozen=True)
class Subject:
    """An image, or a piece of a video, that is cached."""

    source: PurePosixPath
    """Its place below the folder that is cached."""
    size: Size
    """Size of the whole image, as the trainer sees it."""
    framing: Framing
    architecture: Architecture
    piece: Piece | None = None
    flip: bool = False
    """The mirrored image is cached, too."""
    alpha: np.ndarray | None = field(default=None, compare=False)
    """uint8 [h, w] of the bucket's pixels, 255 where they are opaque, with ``alpha_mask``."""


Latents = Sequence["Tensor"]
"""[C, t, h, w] of the image and, with flip, of the mirrored one; t is 1 for an image."""


@dataclass(frozen=True)
class Trainer:
    """A trainer's cache."""

    name: str
    code: str
    """Project and commit where its format was read."""
    architectures: tuple[Architecture, ...]
    frame: Callable[[Size, BucketSettings], Framing]
    """Finds the bucket of an image, and the way there. Raises ValueError for an image that fits no bucket."""
    files: Callable[[Subject], list[PurePosixPath]]
    """Names a subject's files, below the output folder."""
    contents: Callable[[Subject, Latents], list[Stored]]
    """Makes the contents of ``files``, in the same order."""
    is_entry: Callable[[PurePosixPath], bool]
    """Whether a place below the output folder is called as ``files`` calls the trainer's latents."""
    folder: Callable[[PurePosixPath], PurePosixPath] = lambda source: source.parent
    """Names the folder of a source's files, below the output folder."""
    upright: tuple[Kind, ...] = ()
    """What it turns as the file says: photos by their orientation, videos by their display matrix."""
    decoder: Decoder | None = None
    """Its own decoder of images, which leaves colours as stored; None: Pillow, and profiles are converted."""
    over_white: bool = False
    """It lays images with an alpha channel over white."""
    weighs_alpha: bool = False
    """It drops an alpha channel after scaling: Pillow has weighed colours by it."""
    quick_colours: bool = False
    """PyAV turns its videos into RGB by default; see ``ToRgb``."""
    flips: bool = False
    """It caches mirrored images."""
    mirrors_first: bool = False
    """It mirrors an image before it scales and cuts it; otherwise after."""
    alpha_masks: bool = False
    """It can cache the alpha of images. Pixels are then scaled with it, see ``framed``."""
    beside: bool = False
    """It looks for a cache in the folders of the images."""
    image_suffixes: tuple[str, ...] | None = None
    """Lower-case suffixes of images; anything else is a video to it. None: it opens files to tell."""
    one_size: bool = False
    """Every image gets the size that was asked for."""
    ranges: bool = False
    """Smallest and largest side and step of its buckets can be set."""
    square: bool = False
    """Its resolution is one number."""
    enlarges: bool = False
    """It always enlarges small images."""
    one_piece: bool = False
    """It keeps one file of each video, whatever piece that is."""
    frame_extraction: bool = False
    """It cuts a video into pieces of several lengths, spreads them over it, or takes no more than its first frames."""
    apart: bool = False
    """Images and videos have cache folders of their own."""
    bucketed_clips: bool = False
    """It scales every video to its bucket, whatever is set for images."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Architectures of the trainer that tvae writes no caches for, and why."""
    shards: bool = False
    """It reads shards instead of a file for each source."""
    notes: tuple[str, ...] = ()
    """Lines for users of these caches."""

    @property
    def takes_alpha(self) -> bool:
        """Return whether its pixels depend on an image's alpha."""
        return self.over_white or self.weighs_alpha

    def check_kind(self, place: PurePosixPath, kind: Kind) -> None:
        """Raise ValueError for an image that it would take for a video by its name, and the other way round."""
        if self.image_suffixes is None:
            return
        named, suffixes = place.suffix.lower() in self.image_suffixes, ", ".join(self.image_suffixes)
        if kind == "image" and not named:
            raise ValueError(f"{self.name} knows images by {suffixes} alone and stops at others; convert it to PNG")
        if kind == "video" and named:
            raise ValueError(f"{self.name} takes an animation that is called {place.suffix} for a single image")

    def leaves_turned(self, info: MediaInfo) -> bool:
        """Return whether its file says to turn a picture, and the trainer takes it as it is stored."""
        return info.kind not in self.upright and (info.rotation != 0 or info.mirrored)

    def sees(self, info: MediaInfo) -> Size:
        """Return width and height of a picture for the trainer."""
        turned = self.leaves_turned(info) and info.rotation in (90, 270)
        return (info.height, info.width) if turned else (info.width, info.height)


def kept_frames(rate: float, wanted: float | None) -> Iterator[int | None]:
    """Yield, for each frame of a video, its number among the kept frames, or None.

    Of a video of ``rate`` frames a second, ``wanted`` a second are kept; of a slower one all.
    """
    if wanted is None or wanted >= rate:
        yield from count()
        return
    step, place, last = wanted / rate, 0.0, -1
    while True:
        number, place = int(place), place + step
        yield number if number != last else None
        last = number


def kept_count(frames: int, rate: float, wanted: float | None) -> int:
    """Return how many of the first ``frames`` frames are kept."""
    return sum(number is not None for number in islice(kept_frames(rate, wanted), frames))


@dataclass
class _OpenPiece:
    start: int
    length: int
    frames: list[np.ndarray] = field(default_factory=list)


def pieces_of(
    frames: Iterable[np.ndarray], request: CacheRequest, fitted: Callable[[int], int], total: int | None = None
) -> Iterator[tuple[int, list[np.ndarray]]]:
    """Yield the first frame's number and the frames of each piece. Frames left at the end are dropped.

    Args:
        fitted: The length that a clip of a length is cut to where the request names none.
        total: Number of frames; needed for ``frame_sample``.
    """
    if request.frames is None:
        end = None if request.max_frames is None else request.start + request.max_frames
        whole = [*islice(frames, request.start, end)]
        if length := fitted(len(whole)):
            yield request.start, whole[:length]
        return
    lengths_from, last = _beginnings(request, total)
    waiting: list[_OpenPiece] = []
    for number, frame in enumerate(frames):
        waiting += [_OpenPiece(number, length) for length in lengths_from(number)]
        for piece in waiting:
            piece.frames.append(frame)
            if len(piece.frames) == piece.length:
                yield piece.start, piece.frames
        waiting = [piece for piece in waiting if len(piece.frames) < piece.length]
        if last is not None and number >= last and not waiting:
            return


def _beginnings(request: CacheRequest, total: int | None) -> tuple[Callable[[int], list[int]], int | None]:
    """Return the function that gives lengths of the pieces that begin with a frame, and the last such frame if
    known."""
    lengths, start = request.frames or (), request.start
    if request.frame_sample is not None:
        assert total is not None, "pieces are spread over a number of frames"
        spread = {length: _spread(start, total - length, request.frame_sample) for length in lengths}
        last = max((number for places in spread.values() for number in places), default=-1)
        return lambda number: [length for length, places in spread.items() if number in places], last
    if request.stride is None:
        return lambda number: [*lengths] if number == start else [], start
    strides = request.stride if len(request.stride) > 1 else request.stride * len(lengths)

    def lengths_from(number: int) -> list[int]:
        past = number - start
        return [length for length, stride in zip(lengths, strides, strict=True) if past >= 0 and past % stride == 0]

    return lengths_from, None


def _spread(first: int, last: int, many: int) -> set[int]:
    """Return ``many`` numbers from the first to the last at equal distances, rounded down."""
    return set() if last < first else {first + int(one) for one in np.linspace(0, last - first, many, dtype=int)}
