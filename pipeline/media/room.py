"""How much memory reading a picture may take: what it would take is known from its size, before it is decoded."""

from __future__ import annotations

from pathlib import Path

from tvae.pipeline.errors import InputError

__all__ = ["MAX_PIXELS", "VIDEO_HELD_BYTES", "too_large", "too_many_pixels"]

MAX_PIXELS = 1 << 30
"""Of a picture that is read unless more is allowed: 3 GiB of RGB, from a file that may have a few kilobytes."""

VIDEO_HELD_BYTES = 24
"""Of a pixel of a video: the decoder's frames, one in RGB, and those that wait."""


def too_large(path: Path, size: tuple[int, int], taken: int, memory: int) -> InputError:
    """Why a picture of (width, height) is not read."""
    return InputError(
        f"{path}: reading {size[0]}x{size[1]} pixels takes {taken >> 20} MiB, and {max(0, memory) >> 20} MiB are free; "
        "name a larger --vram where one is named, close other programs, or make the picture smaller first"
    )


def too_many_pixels(path: Path, size: tuple[int, int], max_pixels: int) -> InputError:
    """The same for a limit of pixels."""
    return InputError(
        f"{path}: has {size[0]}x{size[1]} pixels, more than the limit of {max_pixels / 1e6:.6g} megapixels; "
        "if you trust the file, allow more with --max-megapixels"
    )
