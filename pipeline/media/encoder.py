"""Choosing and setting up a video encoder; every wrong option is a UsageError before any frame is encoded."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from fractions import Fraction

import av
import av.error
from av.codec.codec import Codec, UnknownCodecError
from av.codec.context import CodecContext
from av.codec.context import Flags as CodecFlags
from av.container import OutputContainer
from av.format import ContainerFormat, Flags
from av.video.codeccontext import VideoCodecContext
from av.video.stream import VideoStream

from tvae.pipeline.errors import UsageError
from tvae.pipeline.media.colour import storable, tag
from tvae.pipeline.media.container import reason
from tvae.pipeline.media.spec import Colour, PictureSpec, WriteOptions

__all__ = ["CONTAINERS", "Encoder", "add_encoder", "check_encoder", "lone_encoder"]

# FFmpeg's muxer for each suffix
CONTAINERS = {".mp4": "mp4", ".m4v": "mp4", ".mov": "mov", ".mkv": "matroska", ".webm": "webm"}

_DEFAULTS = {"webm": ("libvpx-vp9", "libsvtav1", "libaom-av1")}
_DEFAULT = ("libx264", "libopenh264", "mpeg4")

# The option for constant quality, and its value where the user gives none: about as fine as 18 is for x264.
_QUALITY = {
    "libx264": ("crf", 18),
    "libx264rgb": ("crf", 18),
    "libx265": ("crf", 20),
    "libvpx-vp9": ("crf", 24),
    "libaom-av1": ("crf", 24),
    "libsvtav1": ("crf", 24),
    "h264_nvenc": ("cq", 19),
    "hevc_nvenc": ("cq", 21),
    "av1_nvenc": ("cq", 25),
}
# The fallbacks know a bit rate only: this many bits a pixel.
_BITS_PER_PIXEL = {"libopenh264": 0.25, "mpeg4": 0.25}
_ASPECT_IN_BITSTREAM = ("h264", "hevc", "mpeg4")


@dataclass(frozen=True)
class Encoder:
    """An open encoder: the format it takes, the colour it is tagged with.

    ``keeps_aspect``: whether the file tells the sample aspect ratio (PyAV cannot have Matroska store it, so there only
    if the codec itself does).
    """

    context: VideoCodecContext
    pix_fmt: str
    colour: Colour
    keeps_aspect: bool


def check_encoder(suffix: str, options: WriteOptions) -> None:
    """Open the encoder these options name once, for nothing. Raises UsageError when that fails."""
    container = av.open(io.BytesIO(), "w", format=CONTAINERS[suffix])
    like = PictureSpec(256, 256, Fraction(1, 30000), Fraction(30))
    add_encoder(container, like, options, Fraction(1, 30000), Fraction(30))


def add_encoder(
    container: OutputContainer, like: PictureSpec, options: WriteOptions, time_base: Fraction, rate: Fraction
) -> tuple[VideoStream, Encoder]:
    """Add an open encoder for ``like`` to an output container. Raises UsageError naming the option that is wrong."""
    muxer = container.format.name
    name = _codec_name(muxer, options.codec)
    try:
        stream = container.add_stream(name, rate=rate, width=like.width, height=like.height)
    except (ValueError, TypeError) as error:
        raise UsageError(f"{muxer} files cannot hold {name}; choose another --codec or suffix") from error
    if not isinstance(stream, VideoStream):
        raise UsageError(f"--codec {name} is not a video encoder; choose another")
    stream.time_base = time_base
    return stream, _open(stream.codec_context, muxer, like, options, time_base, rate)


def lone_encoder(muxer: str, like: PictureSpec, options: WriteOptions, time_base: Fraction, rate: Fraction) -> Encoder:
    """The encoder that add_encoder adds to a container of this kind, without one: it is freed when nobody holds it.

    (A container and its streams hold each other, and encoders hold many frames.)
    """
    context = CodecContext.create(_codec_name(muxer, options.codec), "w")
    assert isinstance(context, VideoCodecContext)
    context.width, context.height, context.framerate = like.width, like.height, rate
    context.bit_rate_tolerance = 128000  # as PyAV sets it for a stream
    if ContainerFormat(muxer, "w").flags & Flags.global_header.value:  # type: ignore[operator]  # PyAV's stub is wrong
        context.flags |= CodecFlags.global_header
    return _open(context, muxer, like, options, time_base, rate)


def _open(
    context: VideoCodecContext,
    muxer: str,
    like: PictureSpec,
    options: WriteOptions,
    time_base: Fraction,
    rate: Fraction,
) -> Encoder:
    name = context.name
    pix_fmt = _pixel_format(name, options.pix_fmt, like)
    colour = storable(like.colour, options.colour, like.width, like.height, pix_fmt)
    settings = _settings(name, options)
    context.options.update(settings)
    context.pix_fmt = pix_fmt
    context.time_base = time_base
    context.sample_aspect_ratio = like.sample_aspect_ratio
    tag(context, colour)
    if name in _BITS_PER_PIXEL:
        context.bit_rate = math.ceil(like.width * like.height * rate * _BITS_PER_PIXEL[name])
    if name in ("libx265", "hevc_nvenc") and muxer in ("mp4", "mov"):
        context.codec_tag = "hvc1"  # Apple's players refuse the default hev1
    try:
        context.open()
    except (av.error.FFmpegError, OSError, ValueError, OverflowError) as error:
        raise UsageError(
            f"encoder {name} does not start for {like.width}x{like.height} {pix_fmt}, time base {time_base}, options "
            f"{' '.join(f'{key}={value}' for key, value in settings.items()) or '(none)'}: {reason(error)}; "
            "change --codec, --pix-fmt, --crf or --enc"
        ) from error
    unknown = sorted(set(context.options) & set(settings))
    if unknown:
        raise UsageError(f"encoder {name} has no option {', '.join(unknown)}; correct --enc or --crf")
    keeps_aspect = muxer in ("mp4", "mov") or context.codec.canonical_name in _ASPECT_IN_BITSTREAM
    return Encoder(context, pix_fmt, colour, keeps_aspect)


def _codec_name(container: str, wanted: str | None) -> str:
    candidates = (wanted,) if wanted is not None else _DEFAULTS.get(container, _DEFAULT)
    for name in candidates:
        try:
            if Codec(name, "w").type == "video":
                return name
        except UnknownCodecError:
            continue
    raise UsageError(
        f"this build of FFmpeg (PyAV {av.__version__}) has no video encoder named {' or '.join(candidates)}; "
        "choose another --codec (tvae doctor lists them)"
    )


def _pixel_format(codec: str, wanted: str | None, like: PictureSpec) -> str:
    odd = bool(like.width % 2 or like.height % 2)
    known = [found.name for found in Codec(codec, "w").video_formats or ()]
    if wanted is None:
        preferred = ["yuv444p", "yuv420p"] if odd else ["yuv420p"]
        return next((name for name in preferred if not known or name in known), known[0] if known else "yuv420p")
    if known and wanted not in known:
        raise UsageError(f"encoder {codec} does not take --pix-fmt {wanted}; it takes {', '.join(known)}")
    return wanted


def _settings(codec: str, options: WriteOptions) -> dict[str, str]:
    quality = _QUALITY.get(codec)
    settings: dict[str, str] = {}
    if quality is not None:
        value = options.crf if options.crf is not None else quality[1]
        settings[quality[0]] = f"{value:g}"
    elif options.crf is not None:
        raise UsageError(f"encoder {codec} has no constant quality, --crf means nothing to it; use --enc")
    settings.update(options.enc)
    if codec == "libx265":  # it logs to stderr on its own
        settings["x265-params"] = ":".join(filter(None, ["log-level=none", settings.get("x265-params", "")]))
    return settings
