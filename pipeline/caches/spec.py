"""What a trainer's file in ``trainers/`` says: architectures, buckets, names and contents of cache files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Literal

from tvae.pipeline.caches.request import Buckets
from tvae.pipeline.files.stored import Stored
from tvae.pipeline.media.decoders import Decoder
from tvae.pipeline.media.formats import Kind

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from tvae.pipeline.media.spec import MediaInfo

__all__ = ["Architecture", "Filter", "Framing", "Piece", "Size", "Subject", "Trainer", "Wish"]

Size = tuple[int, int]
"""(width, height) in pixels."""

Filter = Literal["area", "linear", "lanczos", "bicubic", "cubic"]
"""Interpolation: *area* and *linear* as OpenCV's INTER_AREA and INTER_LINEAR, *lanczos* and *bicubic* as Pillow's,
*cubic* as PyTorch's antialiased bicubic interpolation of floats."""


@dataclass(frozen=True)
class Architecture:
    """A diffusion model as a trainer knows it, and what that wants of its VAE's latents."""

    name: str
    classes: tuple[str, ...] | None
    """Of VAEs, in diffusers; None: any."""
    channels: int | None
    """Of raw latents; None: any number."""
    factor: int | None
    """Pixels of a raw latent, along each side; None: any number."""
    space: Literal["raw", "model"]
    posterior: Literal["mean", "sample"]
    resolution: Size
    """Where the request names none."""
    dtype: str | None = None
    """That latents are stored in; None: that of the computation."""
    step: int = 64
    """Sides of buckets are multiples of it."""
    constants: tuple[float, float] | None = None
    """Scaling and shift of an AutoencoderKL that tell this VAE from others of its shape; None: they tell nothing."""
    clips: bool = False
    """Videos, too."""
    label: str = ""
    """A second name, where the trainer has one."""
    revision: int = 0
    """Counts the times that tvae's files of it were found wrong: those of an older revision are made again."""
    note: str | None = None
    """What a user should know of its caches alone; a line."""


@dataclass(frozen=True)
class Wish:
    """What buckets are made from."""

    architecture: Architecture
    resolution: Size
    buckets: Buckets
    upscale: bool

    @property
    def step(self) -> int:
        """That sides of buckets are multiples of."""
        return self.buckets.step or self.architecture.step


@dataclass(frozen=True)
class Framing:
    """From an image to what the encoder sees: a change of size, then a crop."""

    resized: Size
    crop: tuple[int, int, int, int]
    """(left, top, width, height)."""
    filter: Filter

    @property
    def size(self) -> Size:
        """That the encoder sees."""
        return self.crop[2], self.crop[3]


@dataclass(frozen=True)
class Piece:
    """Of a video: so many frames, from one on."""

    start: int
    frames: int
    fps: float
    """Of the frames that are kept."""


@dataclass(frozen=True)
class Subject:
    """One image, or one piece of a video, that is cached."""

    source: PurePosixPath
    """Its place below the folder that is cached."""
    size: Size
    """Of the whole image, as the trainer sees it."""
    framing: Framing
    architecture: Architecture
    piece: Piece | None = None
    flip: bool = False
    """The mirrored image is wanted, too."""
    alpha: np.ndarray | None = field(default=None, compare=False)
    """uint8 [h, w], of the bucket's pixels, 255 where they are opaque; None: it is not wanted."""


Latents = Sequence["Tensor"]
"""[C, t, h, w] of the image and, where wanted, of the mirrored one; t is 1 for an image."""


@dataclass(frozen=True)
class Trainer:
    """A trainer's cache."""

    name: str
    code: str
    """Where its format was read: project and commit."""
    architectures: tuple[Architecture, ...]
    frame: Callable[[Size, Wish], Framing]
    """The bucket of an image of a size, and the way there. ValueError for one that fits no bucket."""
    files: Callable[[Subject], list[PurePosixPath]]
    """Names of a subject's files, below the output folder."""
    contents: Callable[[Subject, Latents], list[Stored]]
    """What they hold, in the same order."""
    is_entry: Callable[[PurePosixPath], bool]
    """Whether a place below the output folder is called as ``files`` calls the trainer's latents."""
    folder: Callable[[PurePosixPath], PurePosixPath] = lambda source: source.parent
    """The one that a source's files lie in, below the output folder."""
    upright: tuple[Kind, ...] = ()
    """What it turns as the file says: photos by their orientation, videos by their display matrix."""
    decoder: Decoder | None = None
    """That it decodes images with, as they are stored; None: Pillow, and profiles are converted. See ``decoders``."""
    over_white: bool = False
    """It lays images with an alpha channel over white."""
    weighs_alpha: bool = False
    """It drops an alpha channel once a picture is scaled: Pillow has weighed colours by it."""
    quick_colours: bool = False
    """PyAV turns its videos into RGB without being told how; see ``ToRgb``."""
    flips: bool = False
    mirrors_first: bool = False
    """It mirrors an image before it scales and cuts it; otherwise it mirrors what is cut."""
    alpha_masks: bool = False
    """It can keep the alpha of images. Pixels are then changed in size with it, see ``framed``."""
    beside: bool = False
    """It looks for a cache in the folders of the images."""
    image_suffixes: tuple[str, ...] | None = None
    """In lower case, by which it knows images; all else is a video to it. None: it opens files to tell."""
    one_size: bool = False
    """Every image gets the size that was asked for."""
    ranges: bool = False
    """Smallest and largest side and step of its buckets can be set."""
    square: bool = False
    """Its resolution is one number."""
    enlarges: bool = False
    """It cannot be told to leave small images small."""
    one_piece: bool = False
    """A video is one file; it cannot tell pieces apart."""
    frame_extraction: bool = False
    """It cuts a video into pieces of several lengths, spreads them over it, or takes no more than its first frames."""
    apart: bool = False
    """Images and videos have cache folders of their own."""
    bucketed_clips: bool = False
    """It scales every video to its bucket, whatever is set for images."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Architectures that it has and tvae writes no caches for, and why."""
    shards: bool = False
    """It reads shards instead of a file for each source."""
    notes: tuple[str, ...] = ()
    """What a user should know of these caches; a line each."""

    @property
    def takes_alpha(self) -> bool:
        """Do the pixels that it encodes depend on an image's alpha?"""
        return self.over_white or self.weighs_alpha

    def check_kind(self, place: PurePosixPath, kind: Kind) -> None:
        """ValueError for what it would take for the other kind, by its name."""
        if self.image_suffixes is None:
            return
        named, suffixes = place.suffix.lower() in self.image_suffixes, ", ".join(self.image_suffixes)
        if kind == "image" and not named:
            raise ValueError(f"{self.name} knows images by {suffixes} alone and stops at others; convert it to PNG")
        if kind == "video" and named:
            raise ValueError(f"{self.name} takes an animation that is called {place.suffix} for a single image")

    def leaves_turned(self, info: MediaInfo) -> bool:
        """Is this a picture that its file says to turn, and that the trainer takes as it is stored?"""
        return info.kind not in self.upright and (info.rotation != 0 or info.mirrored)

    def sees(self, info: MediaInfo) -> Size:
        """Width and height of a picture for the trainer."""
        turned = self.leaves_turned(info) and info.rotation in (90, 270)
        return (info.height, info.width) if turned else (info.width, info.height)
