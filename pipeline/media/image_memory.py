"""How many bytes reading a picture takes at most, known from its header and its file's length before it is decoded.

Measured as the resident memory of a process that reads one picture: every format, turn and profile, with alpha and
without, over pictures of noise, whose files are as long as their pixels.
"""

from __future__ import annotations

from PIL import Image

from tvae.pipeline.media.formats import PNG, TIFF, WEBP
from tvae.pipeline.media.image_pixels import transparent

__all__ = ["reading_takes"]

# Bytes of a pixel
_PLAIN = 10
"""As decoded, as RGB, and turned upright. Or a progressive JPEG's coefficients, and as decoded."""
_CMYK = 12
"""The same of four colours."""
_PROFILE = 14
"""Converted from it, too."""
_CANVASES = 20
"""Of formats that Pillow decodes from the whole file: two canvases, and their pixels as Python has them."""
_RESULT = 4
"""Of more than 8 bits, beside FFmpeg's frame."""
_ALPHA = 2
"""Alpha beside colour, as read and turned."""
_ELSEWHERE = 14
"""Of a decoder that takes the whole file: coefficients of four colours, as decoded, and as RGB."""


def reading_takes(image: Image.Image, bits: int, length: int, *, alpha: bool, elsewhere: bool = False) -> int:
    """Bytes, of a picture that Pillow has opened and not decoded. length: of its file. alpha: it is wanted, too.
    elsewhere: another package is to decode it, and Pillow what that does not."""
    if elsewhere:
        whole = image.width * image.height * _ELSEWHERE + length
        return max(whole, reading_takes(image, bits, length, alpha=alpha))
    pixels, profile = image.width * image.height, _PROFILE if image.info.get("icc_profile") else 0
    more, form = _ALPHA if alpha and transparent(image) else 0, image.format
    if bits > 8:
        frame = 2 * len(image.getbands())
        if form == PNG.name:  # FFmpeg looks for the end of the file, and then has it as a packet
            return pixels * (max(frame + _RESULT, profile) + more) + 2 * length
        return pixels * (max(2 * frame + _RESULT, profile) + more) + length  # a strip may be the whole picture
    if form in (WEBP.name, "AVIF"):
        return pixels * _CANVASES + length
    colours = max(_CMYK if image.mode == "CMYK" else _PLAIN, profile) + more
    return pixels * colours + (length if form == TIFF.name else 0)  # which is mapped, or a strip of it read
