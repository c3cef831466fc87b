"""The alpha of an image, kept as a text in the metadata of its latents: VAEs take colours alone.

Readers that do not know the text leave it out, as they do with every key that they do not know; a second tensor they
would refuse.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Mapping

import numpy as np

from tvae.pipeline.files.checked import parse_json
from tvae.pipeline.media.room import MAX_PIXELS

__all__ = ["ALPHA", "alpha_in", "alpha_text"]

ALPHA = "alpha"
"""The key."""
MOST_TEXT = 48 << 20
"""Characters. safetensors allows 100 million bytes for a header."""


def alpha_text(levels: np.ndarray) -> str | None:
    """Of uint8 [H, W], 255: opaque. None where it would be too long, or of more pixels than are read back."""
    if levels.size > MAX_PIXELS:
        return None
    packed = base64.b64encode(zlib.compress(np.ascontiguousarray(levels).data, 6)).decode()
    return json.dumps({"levels": packed}) if len(packed) <= MOST_TEXT else None


def alpha_in(texts: Mapping[str, str], size: tuple[int, int]) -> np.ndarray | None:
    """The alpha in a file's metadata, uint8 [H, W] of a picture of ``size`` (width, height); None where there is none.

    `ValueError` for what is not the alpha of such a picture.
    """
    if ALPHA not in texts:
        return None
    said = parse_json(texts[ALPHA])
    packed = said.get("levels") if isinstance(said, dict) else None
    width, height = size
    if width * height > MAX_PIXELS:
        raise ValueError(f"metadata.alpha is of a picture of {width}x{height}, larger than any that is read")
    try:
        stream = zlib.decompressobj()
        levels = stream.decompress(base64.b64decode(packed or "", validate=True), width * height + 1)
    except (TypeError, ValueError, binascii.Error, zlib.error) as error:
        raise ValueError(f"metadata.alpha cannot be unpacked: {error}") from None
    if len(levels) != width * height or not stream.eof or stream.unused_data:
        raise ValueError(f"metadata.alpha is not that of a picture of {width}x{height}")
    return np.frombuffer(levels, np.uint8).reshape(height, width)
