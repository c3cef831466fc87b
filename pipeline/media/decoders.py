"""Images as programs have them that take colours as stored and decode with another package than Pillow.

SimpleTuner decodes with ``trainingsample`` (for Linux). Of the formats that tvae reads, 0.3.2 gives other values than
Pillow for JPEGs alone, in a file of their own or in a TIFF. Where it does not decode an image, Pillow does.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import logging
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import BinaryIO, Literal

import numpy as np
from PIL import Image

from tvae.pipeline.errors import InputError
from tvae.pipeline.media.formats import JPEG, TIFF

__all__ = [
    "MISSING",
    "Decoder",
    "check_turn",
    "decoded",
    "decodes",
    "decodes_file",
    "differs",
    "pick_decoder",
    "version",
]

Decoder = Literal["pillow", "trainingsample"]
"""Of images whose colours are taken as stored, whatever ICC profile stands beside them. *pillow*: trainingsample is
wanted and is not there."""

_log = logging.getLogger("tvae")

_PACKAGE: Decoder = "trainingsample"
MISSING = (
    "SimpleTuner decodes JPEGs with the package trainingsample, which is not installed here; Pillow's values differ by "
    "up to 5 of 255 (install it, or run tvae in SimpleTuner's environment)"
)
"""What a user should know, of a run."""
_FORMATS = (JPEG.name, "MPO", TIFF.name)
_BEGINS = (b"\xff\xd8", b"II*\0", b"MM\0*")
"""The files of these formats."""
_IN_TIFF = ("jpeg", "tiff_jpeg")
_AS_STORED, _AS_COLOUR = -1, 1


def pick_decoder() -> Decoder:
    """The one that there is."""
    return "pillow" if _package() is None else _PACKAGE


def version() -> str | None:
    """Of trainingsample; None where it is not there."""
    package = _package()
    if package is None:
        return None
    return str(getattr(package, "__version__", None) or _installed_version())


def decodes(image: Image.Image) -> bool:
    """Is it of a format that trainingsample is asked for? From its header."""
    return image.format in _FORMATS


def decodes_file(path: Path) -> bool:
    """The same, by a file's first bytes. `OSError`."""
    with path.open("rb") as file:
        return file.read(4).startswith(_BEGINS)


def differs(image: Image.Image) -> bool:
    """Does trainingsample give other values of it than Pillow? From its header."""
    return image.format in _FORMATS[:2] or (decodes(image) and image.info.get("compression") in _IN_TIFF)


def check_turn(image: Image.Image, path: Path) -> None:
    """InputError for a photo to be turned that Pillow decodes in trainingsample's place. But for a TIFF, which Pillow
    turns when it loads it."""
    if image.format != TIFF.name:
        raise InputError(
            f"{path}: SimpleTuner turns this photo upright when it sorts images, does not when it encodes them, and "
            "stops at its latents; save it upright"
        )


def decoded(file: BinaryIO, size: tuple[int, int]) -> np.ndarray | None:
    """uint8 [H, W, 3] of an image by trainingsample, as stored, any alpha dropped. None: it does not decode it.

    size: width and height by Pillow, of which a TIFF's may be swapped already. `ValueError` where they are not those
    of the pixels, and where the package itself fails.
    """
    package = importlib.import_module(_PACKAGE)
    file.seek(0)
    data = file.read()
    for flag in (_AS_STORED, _AS_COLOUR):
        try:
            pixels = package.imdecode_py(data, flag)
        except Exception as error:  # whatever it is, SimpleTuner goes on to the next way
            _log.debug("%s, flag %d: %s", _PACKAGE, flag, error)
            continue
        except BaseException as error:  # Rust's panics are no Exception to Python
            if type(error).__name__ != "PanicException":
                raise
            raise ValueError(f"{_PACKAGE}: {error}") from None
        rgb = None if pixels is None else _in_rgb(pixels)
        if rgb is not None:
            if sorted(rgb.shape[:2]) != sorted(size):
                raise ValueError(f"its pixels are {rgb.shape[1]}x{rgb.shape[0]}, and its header says otherwise")
            return rgb
    return None


def _in_rgb(pixels: np.ndarray) -> np.ndarray | None:
    """Of uint8 [H, W], or [H, W, C] with C of grey, grey and alpha, RGB, or RGBA; None of others."""
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3):
        return None
    pixels = pixels[..., None] if pixels.ndim == 2 else pixels
    match pixels.shape[2]:
        case 1 | 2:
            return np.repeat(pixels[..., :1], 3, axis=2)
        case 3 | 4:
            return np.ascontiguousarray(pixels[..., :3])
    return None


@cache  # it is asked for each image
def _installed_version() -> str:
    try:
        return importlib.metadata.version(_PACKAGE)
    except importlib.metadata.PackageNotFoundError:  # it is on the path all the same
        return "unknown"


def _package() -> ModuleType | None:
    """None too for one that cannot be loaded here, and for one of another kind under its name."""
    try:
        found = importlib.import_module(_PACKAGE)
    except ModuleNotFoundError:
        return None
    except Exception as error:  # whatever it is, SimpleTuner does not run with it either
        _log.debug("%s cannot be loaded: %s", _PACKAGE, error)
        return None
    return found if hasattr(found, "imdecode_py") else None
