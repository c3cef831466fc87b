"""Reading images: Pillow for 8-bit ones, FFmpeg for 16-bit ones (Pillow silently narrows 16-bit RGB).

An image is decoded whole, also where a smaller ``--size`` is asked for. A JPEG could be decoded at a half or an eighth
of its size in less memory, but that gives other pixels (a photo resized to a quarter: up to 14 levels of 255), and what
latents hold would depend on the memory that is free. One that does not fit is refused.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import suppress
from fractions import Fraction
from importlib import import_module
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image, ImageCms, UnidentifiedImageError
from PIL.TiffImagePlugin import TiffImageFile

from tvae.pipeline.errors import InputError
from tvae.pipeline.media.container import reason
from tvae.pipeline.media.decoders import MISSING, Decoder, check_turn, decoded, decodes, differs
from tvae.pipeline.media.formats import HEIF, JPEG, MJPEG, PILLOW_READS, PNG, TIFF, ImageFormat
from tvae.pipeline.media.image_damage import DAMAGE, blaming, damaged, quiet
from tvae.pipeline.media.image_memory import reading_takes
from tvae.pipeline.media.image_pixels import in_bands, read_deep, transparent
from tvae.pipeline.media.opened import Opened
from tvae.pipeline.media.orientation import UPRIGHT, from_exif
from tvae.pipeline.media.png_colour import unlike_srgb
from tvae.pipeline.media.png_rows import ends_black, holds_all_rows
from tvae.pipeline.media.room import MAX_PIXELS, too_large, too_many_pixels
from tvae.pipeline.media.spec import Colour, MediaInfo
from tvae.pipeline.media.still_reader import StillReader

__all__ = ["ImageReader", "image_size", "is_image"]

_ORIENTATION_TAG, _BITS_TAG, _DNG_TAG = 0x0112, 258, 50706
_SUBFILE_TAG = 254  # bit 0: a reduced version of another picture in the file, which comes first in camera raws
_NEXT = b"\xff\xd9\xff\xd8"  # the end of a JPEG, and the begin of one
_PIX_FMT = {"1": "monob", "L": "gray", "LA": "ya8", "P": "pal8", "PA": "pal8", "RGB": "rgb24", "RGBA": "rgba"}

Image.preinit()  # BMP, GIF, JPEG, PNG; TIFF is there. Pillow's other forty, which take longer, are not read
for _plugin in ("WebPImagePlugin", "AvifImagePlugin"):
    with suppress(ImportError):  # of a Pillow without AVIF
        import_module(f"PIL.{_plugin}")


def is_image(opened: Opened, max_pixels: int = MAX_PIXELS) -> bool:
    """Whether Pillow reads it as one picture; animations of some formats are videos.

    Raises InputError for more than ``max_pixels``, a broken header, and HEIF (FFmpeg would read single tiles of it).
    """
    path = opened.path
    image = _identify(path, opened.file, max_pixels)
    if image is None:
        opened.file.seek(0)
        head = opened.file.read(12)
        if head[4:8] == b"ftyp" and head[8:12] in HEIF.brands:
            raise InputError(f"{path}: is a HEIF photo, which is not supported; convert it to JPEG or PNG first")
        return False
    with image:
        if image.format == JPEG.name and path.suffix.lower() in MJPEG.suffixes and _follow(opened.file):
            return False
        return _format_of(image).several != "video" or _pictures(image, path) == 1


def _follow(file: BinaryIO) -> bool:
    """Do more JPEGs come after the first, without a list of them? Else they are previews."""
    file.seek(0)
    before = b""
    while piece := file.read(1 << 20):
        if _NEXT in before + piece:
            return True
        before = piece[-len(_NEXT) + 1 :]
    return False


def image_size(path: Path) -> tuple[int, int] | None:
    """Width and height as the header has them; None where it is no image that Pillow reads. Raises InputError for a
    broken header."""
    image = _identify(path, path, MAX_PIXELS)
    if image is None:
        return None
    with image:
        return image.size


def _format_of(image: Image.Image) -> ImageFormat:
    """To Pillow, a JPEG with previews is an MPO."""
    return JPEG if image.format == "MPO" else PILLOW_READS[str(image.format)]


def _pictures(image: Image.Image, path: Path) -> int:
    with blaming(path):
        return getattr(image, "n_frames", 1)


def _identify(path: Path, file: Path | BinaryIO, max_pixels: int) -> Image.Image | None:
    """Reads the header alone, of the file or from it. None when it is no image that Pillow may read."""
    try:
        with quiet():
            # left to itself it takes almost anything for a TGA
            image = Image.open(file, formats=[name for name in PILLOW_READS if name in Image.OPEN])
    except UnidentifiedImageError:
        return None
    except DAMAGE as error:
        raise damaged(path, error) from error
    if not _swaps_sides(image, path):
        image.filename = str(path)  # which Pillow does not know of an open file; it maps uncompressed ones by it
    if image.width * image.height > max_pixels:
        image.close()
        raise too_many_pixels(path, image.size, max_pixels)
    return image


def _swaps_sides(image: Image.Image, path: Path) -> bool:
    """Whether Pillow (13.0) maps it with rows of the wrong length: it is a TIFF whose turn swaps its sides."""
    if not isinstance(image, TiffImageFile):
        return False
    with blaming(path):
        return image.tag_v2.get(_ORIENTATION_TAG) in (5, 6, 7, 8)


class ImageReader(StillReader):
    """One image as one frame, decoded on opening."""

    def __init__(
        self,
        opened: Opened,
        max_pixels: int = MAX_PIXELS,
        hold: Callable[[int], None] | None = None,
        memory: int | None = None,
        *,
        alpha: bool = False,
        decoder: Decoder | None = None,
    ) -> None:
        """hold: is told how many bytes the picture takes, before it is decoded. memory: that it may take at most.
        alpha, decoder: see ``open_reader``."""
        self.warnings: list[str] = []
        self._path, self._alpha, self._decoder = opened.path, alpha, decoder
        path = opened.path
        image = _identify(path, opened.file, max_pixels)
        if image is None:
            raise InputError(f"{path}: is not an image; check the file")
        with image:
            bits = _bits(image, path)
            elsewhere = decoder == "trainingsample" and bits <= 8 and decodes(image)
            taken = reading_takes(image, bits, opened.length, alpha=alpha, elsewhere=elsewhere)
            if memory is not None and taken > memory:
                raise too_large(path, image.size, taken, memory)
            if hold is not None:
                hold(taken)
            rgb, info = self._read(image, bits, opened.file, elsewhere=elsewhere)
        super().__init__(info, rgb, self.warnings)

    def _read(self, image: Image.Image, bits: int, file: BinaryIO, *, elsewhere: bool) -> tuple[np.ndarray, MediaInfo]:
        with blaming(self._path):
            tag = image.getexif().get(_ORIENTATION_TAG)
        orientation = told = from_exif(tag)
        has_alpha = transparent(image)
        pix_fmt = _PIX_FMT.get(image.mode, image.mode.lower())
        if _format_of(image).several != "main" and _pictures(image, self._path) > 1:
            self.warnings.append("holds several pictures; the first one was read")
        profile = image.info.get("icc_profile") if self._decoder is None else None
        if image.format == PNG.name and profile is None and self._decoder is None and (other := unlike_srgb(file)):
            self.warnings.append(f"its colours are not sRGB ({other}); read as if they were")
        if self._decoder == "pillow" and differs(image):
            self.warnings.append(MISSING)
        turned = False
        rgb = self._decoded_elsewhere(image, file) if elsewhere else None
        in_its_place = rgb is None and (elsewhere or (self._decoder is not None and image.format == "AVIF"))
        if in_its_place and orientation != UPRIGHT:
            check_turn(image, self._path)
            told = UPRIGHT  # to who reads so
        if bits > 8:
            self.warnings.append(f"{bits}-bit values read as 8-bit")
        if rgb is None and bits > 8:
            image.close()  # which Pillow has decoded, where it looked for the orientation behind a PNG's pixels
            with blaming(self._path):
                rgb, pix_fmt = read_deep(self._path, image.size, alpha=self._alpha)
            if profile or rgb.ndim == 2 or rgb.shape[2] == 2:
                rgb = self._in_srgb(Image.fromarray(rgb), profile)
        elif rgb is None:
            with blaming(self._path):
                image.load()
                if image.format == PNG.name and ends_black(image) and not holds_all_rows(file):
                    raise EOFError("it has fewer rows than its header says")
            # Pillow turns a TIFF upright when it loads it, and takes its tag away
            turned = isinstance(image, TiffImageFile) and _ORIENTATION_TAG not in image.tag_v2
            rgb = self._in_srgb(image, profile)
        if has_alpha and rgb.shape[2] == 3:
            self.warnings.append("transparency dropped")
        if not turned:
            rgb = orientation.apply(rgb)
        return rgb, MediaInfo(
            path=self._path,
            kind="image",
            width=rgb.shape[1],
            height=rgb.shape[0],
            rotation=told.rotation,
            mirrored=told.mirrored,
            sample_aspect_ratio=Fraction(1),
            pix_fmt=pix_fmt,
            bits=bits,
            has_alpha=has_alpha,
            colour=Colour("gbr", "pc", "bt709", "iec61966-2-1"),
            container=str(image.format).lower(),
            codec=str(image.format).lower(),
            frames=1,
        )

    def _decoded_elsewhere(self, image: Image.Image, file: BinaryIO) -> np.ndarray | None:
        """As ``decoded`` gives it. Damage that only Pillow notices is told as it is without another decoder."""
        with blaming(self._path):
            rgb = decoded(file, image.size)
            if rgb is not None:
                image.draft(None, (1, 1))  # of a JPEG: an eighth of its size is enough for that
                image.load()
        return rgb

    def _in_srgb(self, picture: Image.Image, profile: bytes | None) -> np.ndarray:
        """RGB, converted from the embedded ICC profile where there is one that is not sRGB; its alpha where wanted."""
        with blaming(self._path):
            mask = picture if self._alpha and transparent(picture) else None
            return in_bands(self._converted(picture, profile) if profile else picture, mask)

    def _converted(self, picture: Image.Image, profile: bytes) -> Image.Image:
        if picture.mode in ("LA", "1"):  # whose profile is of grey
            picture = picture.convert("L")
        elif transparent(picture) or picture.mode in ("P", "PA", "YCbCr"):
            picture = picture.convert("RGBA").convert("RGB")
        if picture.mode not in ("RGB", "L", "CMYK"):
            self.warnings.append(f"ICC profile of pixels that Pillow calls {picture.mode} cannot be used; ignored")
        else:
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
        return picture


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
    with blaming(path):
        subfile, found = image.tag_v2.get(_SUBFILE_TAG, 0), image.tag_v2.get(_BITS_TAG)
    if (isinstance(subfile, int) and subfile & 1) or _DNG_TAG in image.tag_v2:
        raise InputError(f"{path}: is a camera's raw file, only its thumbnail would be read; develop it to PNG first")
    bits = max((n for n in (found if isinstance(found, tuple) else (found,)) if isinstance(n, int)), default=1)
    if bits > TIFF.bits or image.mode == "F":
        raise InputError(f"{path}: {bits}-bit numbers are not supported; convert it to a 16-bit PNG first")
    return bits


# For formats that may be deeper than 8 bits
_DEEP: dict[str, Callable[[Image.Image, Path], int]] = {"PNG": _png_bits, "TIFF": _tiff_bits}
