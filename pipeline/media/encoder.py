"""Choosing and setting up a video encoder; every wrong option is a UsageError before any frame is encoded."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass, replace
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
from tvae.pipeline.media.formats import ASPECT_IN_BITSTREAM, ENCODERS, EncoderFacts, VideoFormat
from tvae.pipeline.media.spec import Colour, PictureSpec, WriteOptions

__all__ = ["Encoder", "add_encoder", "check_encoder", "lone_encoder"]

WITHOUT_AVX512 = "asm=MMX2,SSE2,SSSE3,SSE4.2,AVX,FMA3,BMI2,AVX2"
"""All that a processor with AVX-512 has, but that. With it x264's lookahead reads memory that it has not written, where
a picture is no multiple of 128 wide: the same frames gave another film each time."""

_LEAST_FOR_X265 = 64
"""Pixels a side. Of 40x32, 48x32 or 48x64, x265 4 writes over memory that is not its own: the process crashes then or
later."""


@dataclass(frozen=True)
class Encoder:
    """An open encoder: the format it takes, the colour it is tagged with.

    ``keeps_aspect``: whether the file, or the codec itself, tells the sample aspect ratio.
    """

    context: VideoCodecContext
    pix_fmt: str
    colour: Colour
    keeps_aspect: bool


def check_encoder(target: VideoFormat, options: WriteOptions) -> None:
    """Open the encoder these options name once, for nothing. Raises UsageError when that fails."""
    container = av.open(io.BytesIO(), "w", format=target.name)
    like = PictureSpec(256, 256, Fraction(1, 30000), Fraction(30))
    add_encoder(container, target, like, options, Fraction(1, 30000), Fraction(30))
    try:
        container.start_encoding()
    except (av.error.FFmpegError, ValueError) as error:
        name = _codec_name(target, options.codec)
        raise UsageError(f"{target.name} files cannot hold {name}; choose another --codec or suffix") from error


def add_encoder(
    container: OutputContainer,
    target: VideoFormat,
    like: PictureSpec,
    options: WriteOptions,
    time_base: Fraction,
    rate: Fraction,
) -> tuple[VideoStream, Encoder]:
    """Add an open encoder for ``like`` to a container of this format. Raises UsageError naming the wrong option."""
    name = _codec_name(target, options.codec)
    try:
        stream = container.add_stream(name, rate=rate, width=like.width, height=like.height)
    except (ValueError, TypeError) as error:
        raise UsageError(f"{target.name} files cannot hold {name}; choose another --codec or suffix") from error
    if not isinstance(stream, VideoStream):
        raise UsageError(f"--codec {name} is not a video encoder; choose another")
    stream.time_base = time_base
    return stream, _open(stream.codec_context, target, like, options, time_base, rate)


def lone_encoder(
    target: VideoFormat, like: PictureSpec, options: WriteOptions, time_base: Fraction, rate: Fraction
) -> Encoder:
    """The encoder that add_encoder adds to a container of this format, without one: it is freed when nobody holds it.

    (A container and its streams hold each other, and encoders hold many frames.)
    """
    context = CodecContext.create(_codec_name(target, options.codec), "w")
    assert isinstance(context, VideoCodecContext)
    context.width, context.height, context.framerate = like.width, like.height, rate
    context.bit_rate_tolerance = 128000  # as PyAV sets it for a stream
    if ContainerFormat(target.name, "w").flags & Flags.global_header.value:  # type: ignore[operator]  # PyAV's stub is wrong
        context.flags |= CodecFlags.global_header
    return _open(context, target, like, options, time_base, rate)


def _open(
    context: VideoCodecContext,
    target: VideoFormat,
    like: PictureSpec,
    options: WriteOptions,
    time_base: Fraction,
    rate: Fraction,
) -> Encoder:
    name = context.name
    if name == "libx265" and min(like.width, like.height) < _LEAST_FOR_X265:
        raise UsageError(
            f"encoder libx265 may crash on {like.width}x{like.height}, it takes {_LEAST_FOR_X265} pixels a side; "
            "choose another --codec"
        )
    facts = ENCODERS.get(name, EncoderFacts())
    pix_fmt = _pixel_format(name, options.pix_fmt, like)
    colour = _told(name, target, storable(like.colour, options.colour, like.width, like.height, pix_fmt), options)
    settings = _settings(name, options)
    context.options.update(settings)
    context.pix_fmt = pix_fmt
    context.time_base = time_base
    context.sample_aspect_ratio = like.sample_aspect_ratio
    tag(context, colour)
    if facts.bits_per_pixel is not None:
        context.bit_rate = math.ceil(like.width * like.height * rate * facts.bits_per_pixel)
    if facts.iso_tag is not None and target.iso:
        context.codec_tag = facts.iso_tag
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
    keeps_aspect = target.iso or context.codec.canonical_name in ASPECT_IN_BITSTREAM
    return Encoder(context, pix_fmt, colour, keeps_aspect)


def _codec_name(target: VideoFormat, wanted: str | None) -> str:
    candidates = (wanted,) if wanted is not None else target.encoders
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


def _told(name: str, target: VideoFormat, colour: Colour, options: WriteOptions) -> Colour:
    """The colour, but for a range or a matrix that readers of the file would not learn of: one that they take it for.
    Raises UsageError where the other was asked for."""
    facts, asked = ENCODERS.get(name, EncoderFacts()), options.colour or Colour()
    if colour.matrix == "gbr":
        return colour
    told = replace(
        colour,
        matrix=facts.matrix or colour.matrix,
        range="tv" if target.name in facts.limited_in else colour.range,
    )
    for wanted, kept in ((asked.matrix, told.matrix), (asked.range, told.range)):
        if wanted is not None and wanted != kept:
            raise UsageError(
                f"{name} in {target.name} files cannot tell --color {wanted}, readers would take it for {kept}; "
                "change --color or --codec"
            )
    return told


def _has_avx512() -> bool:
    import torch  # takes a second, and who reads alone does without

    return torch.backends.cpu.get_cpu_capability() == "AVX512"


def _settings(codec: str, options: WriteOptions) -> dict[str, str]:
    quality = ENCODERS.get(codec, EncoderFacts()).quality
    settings: dict[str, str] = {}
    if quality is not None:
        value = options.crf if options.crf is not None else quality[1]
        settings[quality[0]] = f"{value:g}"
    elif options.crf is not None:
        raise UsageError(f"encoder {codec} has no constant quality, --crf means nothing to it; use --enc")
    settings.update(options.enc)
    if codec in ("libx264", "libx264rgb") and _has_avx512():
        settings["x264-params"] = ":".join(filter(None, [WITHOUT_AVX512, settings.get("x264-params", "")]))
    if codec == "libx265":  # it logs to stderr on its own
        settings["x265-params"] = ":".join(filter(None, ["log-level=none", settings.get("x265-params", "")]))
    return settings
