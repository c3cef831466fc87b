"""Colour: what the tags mean, what to assume without them, and the conversion between YUV and RGB."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

import av.filter
import numpy as np
from av.video.codeccontext import VideoCodecContext
from av.video.format import VideoFormat
from av.video.frame import VideoFrame
from av.video.reformatter import Interpolation, VideoReformatter

from tvae.pipeline.errors import InputError, UsageError
from tvae.pipeline.media.linear_light import is_linear, srgb_of
from tvae.pipeline.media.spec import Colour

__all__ = ["FromRgb", "Reading", "ToRgb", "parse_colour", "read_tags", "settle", "storable", "tag"]

# FFmpeg's numbers and names (libavutil/pixfmt.h, pixdesc.c); 2 is "unspecified" in each.
_MATRICES = {
    0: "gbr", 1: "bt709", 4: "fcc", 5: "bt470bg", 6: "smpte170m", 7: "smpte240m", 8: "ycgco", 9: "bt2020nc",
    10: "bt2020c", 11: "smpte2085", 12: "chroma-derived-nc", 13: "chroma-derived-c", 14: "ictcp",
}  # fmt: skip
_RANGES = {1: "tv", 2: "pc"}
_PRIMARIES = {
    1: "bt709", 4: "bt470m", 5: "bt470bg", 6: "smpte170m", 7: "smpte240m", 8: "film", 9: "bt2020", 10: "smpte428",
    11: "smpte431", 12: "smpte432", 22: "ebu3213",
}  # fmt: skip
_TRANSFERS = {
    1: "bt709", 4: "bt470m", 5: "bt470bg", 6: "smpte170m", 7: "smpte240m", 8: "linear", 9: "log100", 10: "log316",
    11: "iec61966-2-4", 12: "bt1361e", 13: "iec61966-2-1", 14: "bt2020-10", 15: "bt2020-12", 16: "smpte2084",
    17: "smpte428", 18: "arib-std-b67",
}  # fmt: skip
_UNSPECIFIED = 2

# swscale's own numbers for the matrices it knows (SWS_CS_*). Constant luminance (bt2020c) is not a matrix.
_SCALER = {"bt709": 1, "fcc": 4, "bt470bg": 5, "smpte170m": 5, "smpte240m": 7, "bt2020nc": 9}

# Full chroma in both directions and exact rounding: solid colours come within half a level of the formula, where
# swscale's fast path is off by three; 7 ms a 1080p frame.
_QUALITY = int(
    Interpolation.BICUBIC | Interpolation.ACCURATE_RND | Interpolation.FULL_CHR_H_INT | Interpolation.FULL_CHR_H_INP
)

_HDR = {"smpte2084": "PQ", "arib-std-b67": "HLG"}


def read_tags(source: VideoFrame | VideoCodecContext) -> Colour:
    """The four tags of a frame or a codec context."""
    return Colour(
        _MATRICES.get(source.colorspace),
        _RANGES.get(source.color_range),
        _PRIMARIES.get(source.color_primaries),
        _TRANSFERS.get(source.color_trc),
    )


def tag(context: VideoCodecContext, colour: Colour) -> None:
    """Put a settled colour's four tags on an encoder."""
    context.colorspace = _number(_MATRICES, colour.matrix)
    context.color_range = _number(_RANGES, colour.range)
    context.color_primaries = _number(_PRIMARIES, colour.primaries)
    context.color_trc = _number(_TRANSFERS, colour.transfer)


def _number(names: dict[int, str], wanted: str | None) -> int:
    return next((number for number, name in names.items() if name == wanted), _UNSPECIFIED)


@dataclass(frozen=True)
class Reading:
    """A colour with nothing left open, and what had to be assumed for it ("" when nothing)."""

    colour: Colour
    assumed: str


def settle(colour: Colour, width: int, height: int) -> Reading:
    """Fill the gaps of a YUV picture's tags by its size, as players do: HD is bt709, smaller bt601; limited range."""
    hd = max(width, height) >= 1280 or min(width, height) > 576
    matrix = colour.matrix or ("bt709" if hd else "smpte170m")
    value_range = colour.range or "tv"
    family = {"bt709": "bt709", "bt2020nc": "bt2020", "bt2020c": "bt2020"}.get(matrix, "smpte170m")
    transfers = {"bt709": "bt709", "bt2020": "bt2020-10", "smpte170m": "smpte170m"}
    assumed = [] if colour.matrix else [f"{matrix} matrix (by its size)"]
    assumed += [] if colour.range else [f"{'limited' if value_range == 'tv' else 'full'} range"]
    settled = Colour(matrix, value_range, colour.primaries or family, colour.transfer or transfers[family])
    return Reading(settled, " and ".join(assumed))


class ToRgb:
    """Decoded frames of one video -> uint8 [H, W, 3] R'G'B', by the matrix and range of its tags.

    ``warnings`` says what was assumed or lost, ``read_as`` the tags of the pixels that it gives. quick: as PyAV
    converts without being told how, which is what other programs have. Raises InputError for a matrix that is not one
    (YCgCo, ICtCp, ...).
    """

    def __init__(
        self, colour: Colour, pixels: VideoFormat, width: int, height: int, codec: str, *, quick: bool = False
    ) -> None:
        self.warnings: list[str] = []
        self._quick = quick
        self._scaler = VideoReformatter()
        self._matrix: int | None = None
        self._range: int | None = None
        self._grey_limited = False
        self._linear = is_linear(colour, pixels, codec)
        self.read_as = replace(colour, transfer="iec61966-2-1") if self._linear else colour
        if quick:
            self._linear, self.read_as = False, colour
            return
        if self._linear:
            self.warnings.append("converted from linear light to sRGB; what is brighter than white is white")
        if pixels.is_rgb or pixels.has_palette:
            return
        if pixels.name.startswith("yuvj"):
            colour = replace(colour, range="pc")
        if codec == "mjpeg":  # JFIF fixes both
            colour = Colour("smpte170m", colour.range or "pc", colour.primaries, colour.transfer)
        if len([one for one in pixels.components if not one.is_alpha]) == 1:  # grey: no matrix; full unless tagged
            self._grey_limited = colour.range == "tv"
            return
        reading = settle(colour, width, height)
        matrix = reading.colour.matrix
        if matrix == "bt2020c":
            self.warnings.append("bt2020 constant luminance read as non-constant luminance")
            matrix = "bt2020nc"
        if matrix not in _SCALER:
            raise InputError(f"colour matrix {matrix} is not supported; convert it to bt709 first (ffmpeg -vf scale)")
        if reading.assumed:
            self.warnings.append(f"colour not tagged; read with {reading.assumed}")
        if reading.colour.transfer in _HDR:
            self.warnings.append(f"HDR ({_HDR[reading.colour.transfer]}) values read as they are, in 8 bits")
        elif reading.colour.primaries == "bt2020":
            self.warnings.append("wide gamut (bt2020) values read as they are, in 8 bits")
        self._matrix = _SCALER[matrix]
        self._range = _number(_RANGES, reading.colour.range)

    def __call__(self, frame: VideoFrame) -> np.ndarray:
        if self._quick:
            return frame.to_ndarray(format="rgb24")
        if self._linear:
            return srgb_of(frame)
        converted = self._scaler.reformat(
            frame,
            format="rgb24",
            src_colorspace=self._matrix,
            src_color_range=self._range,
            dst_color_range=2 if self._matrix is not None else None,
            interpolation=_QUALITY,
        )
        rgb = converted.to_ndarray()
        return _expand_limited(rgb) if self._grey_limited else rgb


def _expand_limited(grey: np.ndarray) -> np.ndarray:
    # swscale takes grey for full range whatever the tag says
    levels = np.arange(256, dtype=np.float64)
    table = np.rint((levels - 16) * (255 / 219)).clip(0, 255).astype(np.uint8)
    return table[grey]


class FromRgb:
    """uint8 [H, W, 3] R'G'B' -> frames in an encoder's pixel format, by a settled colour's matrix and range.

    A filter graph rather than VideoFrame.reformat, which cannot be told where chroma samples lie and puts them between
    the pixels: decoders take them to lie on the left ones, and colour would shift by half a pixel on every pass.
    """

    def __init__(self, colour: Colour, pix_fmt: str, width: int, height: int) -> None:
        scale = "flags=bicubic+accurate_rnd+full_chroma_int+full_chroma_inp"
        if not VideoFormat(pix_fmt).is_rgb:
            scale += f":in_range=pc:out_color_matrix={colour.matrix}:out_range={colour.range}:out_chroma_loc=left"
        self._graph = av.filter.Graph()
        source = self._graph.add_buffer(width=width, height=height, format=VideoFormat("rgb24"), time_base=Fraction(1))
        self._graph.link_nodes(
            source, self._graph.add("scale", scale), self._graph.add("format", pix_fmt), self._graph.add("buffersink")
        ).configure()
        self._count = 0

    def __call__(self, rgb: np.ndarray) -> VideoFrame:
        frame = VideoFrame.from_ndarray(rgb, format="rgb24")
        frame.pts, self._count = self._count, self._count + 1
        self._graph.vpush(frame)
        return self._graph.vpull()


def storable(colour: Colour, override: Colour | None, width: int, height: int, pix_fmt: str) -> Colour:
    """The colour to write: the source's, but for the matrix and range asked for; RGB formats are gbr, full range."""
    wanted = override or Colour()
    if colour.matrix == "gbr" or VideoFormat(pix_fmt).is_rgb:  # untagged RGB is sRGB
        rgb = Colour("gbr", "pc", colour.primaries or "bt709", colour.transfer or "iec61966-2-1")
        if VideoFormat(pix_fmt).is_rgb:
            return rgb
        colour = replace(rgb, matrix=None, range=None)
    matrix = wanted.matrix or {"bt2020c": "bt2020nc"}.get(str(colour.matrix), colour.matrix)
    value_range = "pc" if pix_fmt.startswith("yuvj") else wanted.range or colour.range
    return settle(replace(colour, matrix=matrix, range=value_range), width, height).colour


def parse_colour(text: str) -> Colour | None:
    """The value of ``--color``: "keep" (None), or "bt709", "bt601", "bt2020", each with ":tv" or ":pc" if wanted."""
    name, _, value_range = text.lower().partition(":")
    matrix = {"bt709": "bt709", "bt601": "smpte170m", "bt2020": "bt2020nc"}.get(name)
    if name == "keep" and not value_range:
        return None
    if matrix is None or value_range not in ("", "tv", "pc"):
        raise UsageError(
            f"unknown colour '{text}'; give keep, bt709, bt601 or bt2020, followed by :tv or :pc if needed"
        )
    return Colour(matrix=matrix, range=value_range or None)
