"""Reading images: Pillow for 8-bit ones, FFmpeg for 16-bit ones (Pillow silently narrows 16-bit RGB)."""

from __future__ import annotations

import contextlib
import io
import logging
import struct
import threading
import warnings
import zlib
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Self

import av
import av.error
import numpy as np
from PIL import Image, ImageCms, UnidentifiedImageError
from PIL.TiffImagePlugin import TiffImageFile

from tvae.pipeline.errors import InputError
from tvae.pipeline.media.container import reason
from tvae.pipeline.media.formats import HEIF, JPEG, PILLOW_READS, TIFF, ImageFormat
from tvae.pipeline.media.orientation import from_exif
from tvae.pipeline.media.spec import Colour, Frame, MediaInfo

__all__ = ["DAMAGE", "MAX_PIXELS", "ImageReader", "is_image", "quiet"]

MAX_PIXELS = 1 << 30
"""Of a picture that is read unless more is allowed: 3 GiB of RGB, from a file that may have a few kilobytes."""
HELD_BYTES = 8
"""Of a pixel that is read: Pillow's four, the frame's three, and a little of what comes after."""
_ORIENTATION_TAG, _BITS_TAG, _DNG_TAG = 0x0112, 258, 50706
_SUBFILE_TAG = 254  # bit 0: a reduced version of another picture in the file, which comes first in camera raws
_PIX_FMT = {"1": "monob", "L": "gray", "LA": "ya8", "P": "pal8", "PA": "pal8", "RGB": "rgb24", "RGBA": "rgba"}

# What Pillow and FFmpeg raise on damaged files
DAMAGE = (
    OSError,
    ValueError,
    SyntaxError,
    TypeError,
    LookupError,
    ArithmeticError,
    EOFError,
    RuntimeError,
    struct.error,
    zlib.error,
    av.error.FFmpegError,
    Image.DecompressionBombError,  # of a picture in the file that is larger than its header said
)

Image.init()
# without any handler, logging prints Pillow's complaints about damaged files to stderr
logging.getLogger("PIL").addHandler(logging.NullHandler())


class _Quiet:
    """Pillow warns of damaged metadata by Python warnings, and refuses large pictures by a limit of its own, which is
    smaller than what can be computed here; ours is asked instead. Both settings are the whole process's: who comes
    first changes them, and who goes last puts them back, so that threads decode at the same time."""

    def __init__(self) -> None:
        self._lock, self._inside = threading.Lock(), 0
        self._before: contextlib.ExitStack | None = None

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._before = contextlib.ExitStack()
                self._before.enter_context(warnings.catch_warnings())
                warnings.simplefilter("ignore")
                limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
                self._before.callback(setattr, Image, "MAX_IMAGE_PIXELS", limit)
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0 and self._before is not None:
                self._before.close()
                self._before = None


_quiet = _Quiet()


def quiet() -> contextlib.AbstractContextManager[None]:
    """Around calls of Pillow's, in any number of threads."""
    return _quiet


def is_image(path: Path, max_pixels: int = MAX_PIXELS) -> bool:
    """Whether Pillow reads it as one picture; animations of some formats are videos.

    Raises InputError for more than ``max_pixels``, a broken header, and HEIF (FFmpeg would read single tiles of it).
    """
    image = _identify(path, max_pixels)
    if image is None:
        with path.open("rb") as file:
            head = file.read(12)
        if head[4:8] == b"ftyp" and head[8:12] in HEIF.brands:
            raise InputError(f"{path}: is a HEIF photo, which is not supported; convert it to JPEG or PNG first")
        return False
    with image:
        return _format_of(image).several != "video" or _pictures(image, path) == 1


def _format_of(image: Image.Image) -> ImageFormat:
    """To Pillow, a JPEG with previews is an MPO."""
    return JPEG if image.format == "MPO" else PILLOW_READS[str(image.format)]


def _pictures(image: Image.Image, path: Path) -> int:
    with _pillow(path):
        return getattr(image, "n_frames", 1)


def _identify(path: Path, max_pixels: int) -> Image.Image | None:
    """Reads the header alone. None when it is no image that Pillow may read."""
    try:
        with quiet():
            # left to itself it takes almost anything for a TGA
            image = Image.open(path, formats=[name for name in PILLOW_READS if name in Image.OPEN])
    except UnidentifiedImageError:
        return None
    except DAMAGE as error:
        raise _damaged(path, error) from error
    width, height = image.size
    if width * height > max_pixels:
        image.close()
        raise InputError(
            f"{path}: has {width}x{height} pixels, more than the limit of {max_pixels / 1e6:.6g} megapixels; "
            "if you trust the file, allow more with --max-megapixels"
        )
    return image


@contextlib.contextmanager
def _pillow(path: Path) -> Iterator[None]:
    """Around calls of Pillow's and FFmpeg's alone: the like of what they raise on damaged files is our mistake where it
    is raised by ourselves."""
    try:
        with quiet():
            yield
    except DAMAGE as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> InputError:
    return InputError(f"{path}: the image is damaged ({reason(error)}); fetch it again or convert it to PNG")


class ImageReader:
    """One image as one frame, decoded on opening."""

    def __init__(self, path: Path, max_pixels: int = MAX_PIXELS, hold: Callable[[int], None] | None = None) -> None:
        """hold: is told how many bytes the picture takes, before it is decoded."""
        self.warnings: list[str] = []
        self._path = path
        image = _identify(path, max_pixels)
        if image is None:
            raise InputError(f"{path}: is not an image; check the file")
        with image:
            if hold is not None:
                hold(image.width * image.height * HELD_BYTES)
            self._rgb, self.info = self._read(image)

    def __iter__(self) -> Iterator[Frame]:
        yield Frame(self._rgb)

    def count(self) -> int:
        """One."""
        return 1

    def close(self) -> None:
        """Nothing stays open."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self, image: Image.Image) -> tuple[np.ndarray, MediaInfo]:
        bits = _bits(image, self._path)
        with _pillow(self._path):
            tag = image.getexif().get(_ORIENTATION_TAG)
        orientation = from_exif(tag)
        has_alpha = "A" in image.getbands() or "transparency" in image.info
        pix_fmt = _PIX_FMT.get(image.mode, image.mode.lower())
        if _format_of(image).several == "first" and _pictures(image, self._path) > 1:
            self.warnings.append("holds several pictures; the first one was read")
        if bits > 8:
            picture, pix_fmt = self._read_deep()
            self.warnings.append(f"{bits}-bit values read as 8-bit")
            turned = False
        else:
            picture = image
            with _pillow(self._path):
                picture.load()
            # Pillow turns a TIFF upright when it loads it, and takes its tag away
            turned = isinstance(image, TiffImageFile) and _ORIENTATION_TAG not in image.tag_v2
        if has_alpha:
            self.warnings.append("transparency dropped")
        rgb = np.asarray(self._in_srgb(picture, image.info.get("icc_profile")))
        if not turned:
            rgb = orientation.apply(rgb)
        return rgb, MediaInfo(
            path=self._path,
            kind="image",
            width=rgb.shape[1],
            height=rgb.shape[0],
            rotation=orientation.rotation,
            mirrored=orientation.mirrored,
            sample_aspect_ratio=Fraction(1),
            pix_fmt=pix_fmt,
            bits=bits,
            has_alpha=has_alpha,
            colour=Colour("gbr", "pc", "bt709", "iec61966-2-1"),
            container=str(image.format).lower(),
            codec=str(image.format).lower(),
            frames=1,
        )

    def _read_deep(self) -> tuple[Image.Image, str]:
        """A 16-bit image, each value v rounded to v / 257, and its pixel format."""
        with _pillow(self._path):
            with self._path.open("rb") as file, av.open(file, "r") as container:
                frame = next(iter(container.decode(video=0)), None)
            if frame is None:
                raise InputError(f"{self._path}: the image is damaged (there is no picture in it); fetch it again")
            pix_fmt = frame.format.name
            if not pix_fmt.startswith(("gray16", "rgb48", "rgba64")):
                frame = frame.reformat(format="rgb48le")
            values = frame.to_ndarray()
        narrow = ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)
        return Image.fromarray(narrow[..., :3] if narrow.ndim == 3 else narrow), pix_fmt

    def _in_srgb(self, picture: Image.Image, profile: bytes | None) -> Image.Image:
        """RGB, converted from the embedded ICC profile where there is one that is not sRGB."""
        with _pillow(self._path):
            return self._converted(picture, profile)

    def _converted(self, picture: Image.Image, profile: bytes | None) -> Image.Image:
        if "A" in picture.getbands() or "transparency" in picture.info:
            picture = picture.convert("RGBA").convert("RGB")  # straight to RGB Pillow warns about palettes
        if profile and picture.mode in ("RGB", "L", "CMYK"):
            try:
                source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
                name = ImageCms.getProfileDescription(source).strip()
                if "srgb" not in name.lower():
                    converted = ImageCms.profileToProfile(
                        picture,
                        source,
                        ImageCms.createProfile("sRGB"),
                        renderingIntent=ImageCms.Intent.RELATIVE_COLORIMETRIC,
                        outputMode="RGB",
                        flags=ImageCms.Flags.BLACKPOINTCOMPENSATION,
                    )
                    self.warnings.append(f"converted from its ICC profile ({name}) to sRGB")
                    return converted if converted is not None else picture
            except (ImageCms.PyCMSError, OSError) as error:
                self.warnings.append(f"ICC profile cannot be used ({reason(error)}); ignored")
        return picture.convert("RGB")


def _bits(image: Image.Image, path: Path) -> int:
    """Bits of one stored component, from the header: Pillow's mode does not tell for RGB."""
    form = _format_of(image)
    if form.bits == 8:
        return 1 if image.mode == "1" else 8
    return _DEEP[form.name](image, path)


def _png_bits(image: Image.Image, path: Path) -> int:
    with path.open("rb") as file:
        return file.read(25)[24]  # IHDR comes first: signature and chunk header 16 bytes, width and height 8


def _tiff_bits(image: Image.Image, path: Path) -> int:
    """InputError for a camera's raw file, and for more bits than are read."""
    assert isinstance(image, TiffImageFile)
    with _pillow(path):
        subfile, found = image.tag_v2.get(_SUBFILE_TAG, 0), image.tag_v2.get(_BITS_TAG)
    if (isinstance(subfile, int) and subfile & 1) or _DNG_TAG in image.tag_v2:
        raise InputError(f"{path}: is a camera's raw file, only its thumbnail would be read; develop it to PNG first")
    bits = max((n for n in (found if isinstance(found, tuple) else (found,)) if isinstance(n, int)), default=1)
    if bits > TIFF.bits or image.mode == "F":
        raise InputError(f"{path}: {bits}-bit numbers are not supported; convert it to a 16-bit PNG first")
    return bits


# For formats that may be deeper than 8 bits
_DEEP: dict[str, Callable[[Image.Image, Path], int]] = {"PNG": _png_bits, "TIFF": _tiff_bits}
