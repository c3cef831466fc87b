"""Flags to a Job: parses texts, refuses flags that exclude each other. Imports the pipeline; use inside commands."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from tvae.pipeline.errors import UsageError
from tvae.pipeline.jobs import read_list
from tvae.pipeline.jobs.job import Existing, Listed
from tvae.pipeline.media import MAX_PIXELS

__all__ = [
    "batch_size",
    "existing",
    "listed",
    "parse_counts",
    "parse_fps",
    "parse_pairs",
    "parse_shape",
    "parse_size",
    "pixel_limit",
]


def listed(batch_file: str | None) -> tuple[Listed, ...]:
    """The inputs that a list names."""
    return () if batch_file is None else tuple(map(Listed, read_list(batch_file)))


def batch_size(text: str) -> int | None:
    """``auto``, which is None, or a number from 1 up."""
    if text == "auto":
        return None
    if not (text.isascii() and text.isdigit() and int(text)):
        raise UsageError(f"--batch {text} is no number of pictures; name one from 1 up, or auto")
    return int(text)


def existing(overwrite: bool, no_clobber: bool) -> Existing:
    """What becomes of outputs that are there."""
    if overwrite and no_clobber:
        raise UsageError("--overwrite and --no-clobber cannot be used together")
    return "overwrite" if overwrite else "keep" if no_clobber else "skip"


def parse_size(text: str | None) -> tuple[int, int] | None:
    """``640x360`` to (640, 360)."""
    if text is None:
        return None
    width, height = _numbers(text, 2, 2, "--size", "WxH, such as 1280x720")
    return width, height


def parse_counts(text: str | None, flag: str) -> tuple[int, ...] | None:
    """``17`` or ``17,33``."""
    if text is None:
        return None
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        raise UsageError(f"{flag} {text} is no number of frames; name one such as 17, or several such as 17,33")
    return tuple(map(int, parts))


def pixel_limit(megapixels: int | None) -> int:
    """Pixels of an image at most."""
    return MAX_PIXELS if megapixels is None else megapixels * 1_000_000


def parse_shape(text: str) -> tuple[int, int, int]:
    """``WxH`` or ``WxHxT`` to (height, width, frames)."""
    width, height, *frames = _numbers(text, 2, 3, "--shape", "WxH or WxHxT, such as 1280x720 or 1280x720x33")
    return height, width, frames[0] if frames else 1


def parse_fps(text: str | None) -> Fraction | None:
    """``30``, ``29.97`` or ``30000/1001``."""
    if text is None:
        return None
    try:
        return Fraction(text)
    except (ValueError, ZeroDivisionError):
        raise UsageError(f"--fps {text} is not a number; write it like 30, 29.97 or 30000/1001") from None


def parse_pairs(texts: Sequence[str] | None) -> tuple[tuple[str, str], ...]:
    """``key=value`` each."""
    pairs = []
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not (key and equals):
            raise UsageError(f"--enc {text} is not KEY=VALUE, such as preset=slow")
        pairs.append((key, value))
    return tuple(pairs)


def _numbers(text: str, least: int, most: int, flag: str, form: str) -> list[int]:
    parts = text.lower().split("x")
    if not least <= len(parts) <= most or not all(part.isascii() and part.isdigit() and int(part) for part in parts):
        raise UsageError(f"{flag} {text} is not {form}")
    return [int(part) for part in parts]
