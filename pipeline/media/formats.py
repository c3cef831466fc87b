"""All formats of images and videos, in one table.

A format is one entry of :data:`FORMATS`; the rest of tvae asks this module. What a file is, is decided by its content
when it is read, and by its suffix when it is written, or listed with its folder.

Suffixes are in lower case, with their dot. The first of an entry is its usual one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

__all__ = [
    "ASPECT_IN_BITSTREAM",
    "BMP",
    "DEFAULT_SUFFIXES",
    "ENCODERS",
    "FORMATS",
    "HEIF",
    "JPEG",
    "MATROSKA",
    "MJPEG",
    "MOV",
    "MP4",
    "NUT",
    "PILLOW_READS",
    "PNG",
    "TIFF",
    "VIDEO_OPTIONS",
    "WRITTEN_SUFFIXES",
    "EncoderFacts",
    "ImageFormat",
    "Kind",
    "Mark",
    "VideoFormat",
    "kinds_of",
    "listed",
    "written_as",
]

Kind = Literal["image", "video"]

Mark = Literal["png text", "comment", "description", "before pixels"]
"""Where an image keeps the fingerprint; see ``fingerprint``."""


@dataclass(frozen=True)
class ImageFormat:
    """A kind of file that holds one picture, or an animation. Pillow writes all that are written."""

    name: str
    """Pillow's, where Pillow reads or writes it."""
    suffixes: tuple[str, ...]
    reader: Literal["Pillow", "FFmpeg"] | None = "Pillow"
    """Pillow's formats must be told by their first bytes. FFmpeg is asked about all that Pillow does not take. None: it
    is refused."""
    brands: tuple[bytes, ...] = ()
    """Of a format that is refused: what its ``ftyp`` box says."""
    bits: int = 8
    """Most bits of a component that are read where Pillow is the reader; more than 8 need a function in
    ``image_read``."""
    several: Literal["first", "main", "video"] = "first"
    """What a file with more than one picture is: the *first* one, which is told; the *main* one, whose others are but
    previews; a *video*."""
    video_suffixes: tuple[str, ...] = ()
    """Those of the suffixes under which a video is to be expected as well."""

    written: tuple[str, ...] = ()
    """Those of the suffixes that outputs may have."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """For Pillow's save()."""
    settings: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """What ``--enc`` may set, from and up to."""
    mark: Mark | None = None
    """None: it has no place for a fingerprint, and finished files are never recognised."""
    alpha: Mapping[str, Any] | None = None
    """For Pillow's save() of a picture with alpha; None: it is written without."""


@dataclass(frozen=True)
class VideoFormat:
    """A kind of file that holds video, sound and subtitles. FFmpeg reads and writes them all."""

    name: str
    """FFmpeg's: of the muxer where there is one, else of the demuxer."""
    suffixes: tuple[str, ...]
    written: tuple[str, ...] = ()
    """Those of the suffixes that outputs may have."""
    encoders: tuple[str, ...] = ("libx264", "libopenh264", "mpeg4")
    """Without ``--codec``: the first of these that this build of FFmpeg has."""
    iso: bool = False
    """MP4 and its like. They keep every time base and the pixel aspect, and name codecs by tags. Of other formats PyAV
    cannot set the pixel aspect."""


@dataclass(frozen=True)
class EncoderFacts:
    """An encoder of FFmpeg. Those that are not in :data:`ENCODERS` run with FFmpeg's own defaults."""

    quality: tuple[str, float] | None = None
    """The option for constant quality (``--crf``), and its value without one: about as fine as 18 is for x264."""
    bits_per_pixel: float | None = None
    """For encoders that know a bit rate only."""
    iso_tag: str | None = None
    """In place of FFmpeg's own in formats that are ``iso``."""
    limited_in: tuple[str, ...] = ()
    """FFmpeg's names of the formats in which nothing tells full range, so that readers take limited."""
    matrix: str | None = None
    """The only one that decoders take its pictures to have."""


_PRORES_IN = ("mp4", "mov", "matroska")

ENCODERS: Mapping[str, EncoderFacts] = {
    "libx264": EncoderFacts(("crf", 18)),
    "libx264rgb": EncoderFacts(("crf", 18)),
    "libx265": EncoderFacts(("crf", 20), iso_tag="hvc1"),  # Apple's players refuse the default hev1
    "libvpx-vp9": EncoderFacts(("crf", 24)),
    "libaom-av1": EncoderFacts(("crf", 24)),
    "libsvtav1": EncoderFacts(("crf", 24)),
    "h264_nvenc": EncoderFacts(("cq", 19)),
    "hevc_nvenc": EncoderFacts(("cq", 21), iso_tag="hvc1"),
    "av1_nvenc": EncoderFacts(("cq", 25)),
    "libopenh264": EncoderFacts(bits_per_pixel=0.25),
    "mpeg4": EncoderFacts(bits_per_pixel=0.25, limited_in=("mov",)),
    "libvpx": EncoderFacts(limited_in=("matroska", "webm"), matrix="smpte170m"),
    "prores": EncoderFacts(limited_in=_PRORES_IN),
    "prores_aw": EncoderFacts(limited_in=_PRORES_IN),
    "prores_ks": EncoderFacts(limited_in=_PRORES_IN),
}

ASPECT_IN_BITSTREAM = ("h264", "hevc", "mpeg4")
"""Codecs, by FFmpeg's canonical name, that tell the pixel aspect themselves."""

_PNG_LEVEL = 1
"""Of zlib: 5 times as fast as Pillow's 6, for files that are 2 to 6 % larger. 1024x1024 from a decoder, in milliseconds
of one core and share of the pixels' bytes: level 1 67 (0.487), 2 74 (0.479), 3 105 (0.468), 6 325 (0.462), 9 1319
(0.453); Kodak photos: 1 76 (0.589), 3 115 (0.578), 6 318 (0.578). To keep up with 55 pictures a second level
1 takes 4 cores, level 6 18."""

PNG = ImageFormat(
    "PNG",
    (".png", ".apng"),
    bits=16,
    several="video",
    video_suffixes=(".apng",),
    written=(".png",),
    defaults={"compress_level": _PNG_LEVEL},
    settings={"compress_level": (0, 9)},
    mark="png text",
    alpha={},
)
JPEG = ImageFormat(
    "JPEG",
    (".jpg", ".jpeg", ".jpe", ".jfif"),
    several="main",
    written=(".jpg", ".jpeg"),
    defaults={"quality": 95, "subsampling": 0},
    settings={"quality": (1, 100), "subsampling": (0, 2), "progressive": (0, 1)},
    mark="comment",
)
WEBP = ImageFormat(
    "WEBP",
    (".webp",),
    written=(".webp",),
    defaults={"quality": 95, "method": 4},
    settings={"quality": (0, 100), "method": (0, 6), "lossless": (0, 1)},
    mark="description",
    alpha={"exact": True},  # or colours that do not show are not kept
)
BMP = ImageFormat("BMP", (".bmp",), written=(".bmp",), mark="before pixels")
TIFF = ImageFormat(
    "TIFF",
    (".tif", ".tiff"),
    bits=16,
    written=(".tif", ".tiff"),
    defaults={"compression": "tiff_deflate"},
    mark="description",
    alpha={},
)
HEIF = ImageFormat(
    "HEIF",
    (".heic", ".heif"),
    None,  # FFmpeg would read single tiles of it
    brands=(b"heic", b"heix", b"heim", b"heis", b"mif1"),
)

MP4 = VideoFormat("mp4", (".mp4", ".m4v"), written=(".mp4", ".m4v"), iso=True)
MATROSKA = VideoFormat("matroska", (".mkv",), written=(".mkv",))
MOV = VideoFormat("mov", (".mov",), written=(".mov",), iso=True)
NUT = VideoFormat("nut", (".nut",))
MJPEG = VideoFormat("mjpeg", (".mjpeg",))

FORMATS: tuple[ImageFormat | VideoFormat, ...] = (
    PNG,
    JPEG,
    WEBP,
    BMP,
    TIFF,
    ImageFormat("GIF", (".gif",), several="video", video_suffixes=(".gif",)),
    # a Pillow without AVIF leaves it to FFmpeg, to which it is a video
    ImageFormat("AVIF", (".avif",), video_suffixes=(".avif",)),
    ImageFormat("EXR", (".exr",), "FFmpeg"),
    ImageFormat("HDR", (".hdr",), "FFmpeg"),
    HEIF,
    ImageFormat("JPEG2000", (".jp2", ".j2k"), "FFmpeg"),
    ImageFormat("JXL", (".jxl",), "FFmpeg"),
    ImageFormat("PPM", (".ppm", ".pgm", ".pbm", ".pnm"), "FFmpeg"),
    ImageFormat("QOI", (".qoi",), "FFmpeg"),
    ImageFormat("TGA", (".tga",), "FFmpeg"),
    MP4,
    MOV,
    MATROSKA,
    VideoFormat("webm", (".webm",), written=(".webm",), encoders=("libvpx-vp9", "libsvtav1", "libaom-av1")),
    NUT,
    VideoFormat("3gp", (".3gp",)),
    VideoFormat("asf", (".asf", ".wmv")),
    VideoFormat("avi", (".avi",)),
    VideoFormat("dv", (".dv",)),
    VideoFormat("f4v", (".f4v",)),
    VideoFormat("flv", (".flv",)),
    MJPEG,
    VideoFormat("mpeg", (".mpg", ".mpeg")),
    VideoFormat("mpeg2video", (".m2v",)),
    VideoFormat("mpegts", (".ts", ".m2ts", ".mts")),
    VideoFormat("mxf", (".mxf",)),
    VideoFormat("ogv", (".ogv",)),
    VideoFormat("vob", (".vob",)),
    VideoFormat("yuv4mpegpipe", (".y4m",)),
)

DEFAULT_SUFFIXES: Mapping[Kind, str] = {"image": PNG.suffixes[0], "video": MP4.suffixes[0]}
"""Of results whose name the user leaves to tvae."""

WRITTEN_SUFFIXES: Mapping[Kind, tuple[str, ...]] = {
    "image": tuple(suffix for one in FORMATS if isinstance(one, ImageFormat) for suffix in one.written),
    "video": tuple(suffix for one in FORMATS if isinstance(one, VideoFormat) for suffix in one.written),
}
"""That outputs may have."""

VIDEO_OPTIONS = ("codec", "crf", "pix_fmt", "fps")
"""Wishes for an output (``WriteOptions``) that mean nothing to an image."""

PILLOW_READS: Mapping[str, ImageFormat] = {
    one.name: one for one in FORMATS if isinstance(one, ImageFormat) and one.reader == "Pillow"
}
"""By Pillow's name."""

_BY_SUFFIX = {suffix: one for one in FORMATS for suffix in one.suffixes}
_ALL_KINDS: frozenset[Kind] = frozenset({"image", "video"})


def listed(suffix: str) -> bool:
    """Whether a folder's files of this suffix are taken for media."""
    return suffix.lower() in _BY_SUFFIX


@lru_cache(1 << 10)  # a folder has few kinds of files, and many of each
def kinds_of(suffix: str) -> frozenset[Kind]:
    """What a file of this suffix may turn out to be when it is opened; an unknown suffix says nothing."""
    found = _BY_SUFFIX.get(suffix.lower())
    if found is None or (isinstance(found, ImageFormat) and suffix.lower() in found.video_suffixes):
        return _ALL_KINDS
    return frozenset({"image"}) if isinstance(found, ImageFormat) else frozenset({"video"})


def written_as(suffix: str) -> ImageFormat | VideoFormat | None:
    """The format that an output of this suffix is written in, None where none is."""
    found = _BY_SUFFIX.get(suffix.lower())
    return found if found is not None and suffix.lower() in found.written else None
