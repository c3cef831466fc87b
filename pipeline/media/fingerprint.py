"""A result's own word on what made it: a short text in the file's metadata that decides what can be skipped.

It says ``tvae-fingerprint=<64 hex digits>``. An image has it where its format's ``mark`` says: in a tEXt chunk of that
keyword (*png text*), in the file's *comment*, or in the ImageDescription of EXIF or TIFF (*description*). BMP has no
metadata; there it stands between the headers and the pixels, where the format lets anything be (*before pixels*). A
video has it in the container's ``comment``, or, where the source's comment is there, in the ``handler_name`` of the
picture: both are in every container.
"""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any, BinaryIO

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from tvae.pipeline.errors import InputError
from tvae.pipeline.files.checked import open_regular
from tvae.pipeline.media.container import open_container
from tvae.pipeline.media.formats import ImageFormat
from tvae.pipeline.media.image_damage import DAMAGE, quiet

__all__ = ["image_tag", "is_mark", "mark_video", "read_image_tag", "read_video_tag", "stamp"]

_KEY = "tvae-fingerprint"
_TEXT = re.compile(f"{_KEY}=([0-9a-f]{{64}})")
_DESCRIPTION = 0x010E  # ImageDescription in TIFF and EXIF
_WHOLE, _PICTURE = "comment", "handler_name"
_BMP_HEAD = struct.Struct("<2sI4xI")  # "BM", size of the file, where the pixels start


def image_tag(target: ImageFormat, fingerprint: str) -> dict[str, Any]:
    """What to hand to Pillow's save(); nothing for a format that is marked afterwards, see stamp."""
    text = f"{_KEY}={fingerprint}"
    match target.mark:
        case "png text":
            chunks = PngInfo()
            chunks.add_text(_KEY, fingerprint)
            return {"pnginfo": chunks}
        case "comment":
            return {"comment": text}
        case "description":
            exif = Image.Exif()
            exif[_DESCRIPTION] = text
            return {"exif": exif}
    return {}


def stamp(target: ImageFormat, path: Path, fingerprint: str) -> None:
    """Mark a file that Pillow has written, if its format has no place that Pillow fills: before a BMP's pixels."""
    if target.mark != "before pixels":
        return
    data = path.read_bytes()
    magic, size, start = _BMP_HEAD.unpack_from(data)
    text = f"{_KEY}={fingerprint}".encode()
    text += bytes(-len(text) % 4)  # the pixels stay aligned
    head = _BMP_HEAD.pack(magic, size + len(text), start + len(text))
    path.write_bytes(head + data[len(head) : start] + text + data[start:])


def mark_video(whole: dict[str, str], picture: dict[str, str], fingerprint: str) -> None:
    """Into the metadata of the container or of the picture's stream."""
    commented = any(key.lower() == _WHOLE for key in whole)
    (picture if commented else whole)[_PICTURE if commented else _WHOLE] = f"{_KEY}={fingerprint}"


def is_mark(text: str) -> bool:
    """Whether this is ours, of the source."""
    return _match(text) is not None


def read_image_tag(path: Path, target: ImageFormat) -> str | None:
    """The fingerprint in an image of this format, None without one; no pixel is decoded."""
    try:
        with open_regular(path) as file:
            if target.mark == "before pixels":
                text: object = _before_pixels(file)
            else:
                # not Image.open: it refuses large pictures, and nothing is decoded here
                with quiet(), Image.OPEN[target.name][0](file, path.name) as image:
                    text = image.getexif().get(_DESCRIPTION) if target.mark == "description" else None
                    known = image.info
                if target.mark == "png text":
                    text = f"{_KEY}={known.get(_KEY)}"
                elif target.mark == "comment":
                    text = known.get("comment")
    except DAMAGE:  # of Pillow's on a file that may be anybody's: it does not say that it is ours
        return None
    return _match(text)


def read_video_tag(path: Path) -> str | None:
    """The fingerprint in a video, None without one; its frames are not read."""
    try:
        with open_container(path) as container:
            places = [(_WHOLE, container.metadata), *((_PICTURE, one.metadata) for one in container.streams.video)]
    except InputError:
        return None
    # Matroska shouts its keys
    texts = [text for place, found in places for key, text in found.items() if key.lower() == place]
    return next(filter(None, map(_match, texts)), None)


def _before_pixels(file: BinaryIO) -> bytes:
    """The end of what stands between the headers and the pixels of a BMP, without the padding."""
    _, _, start = _BMP_HEAD.unpack(file.read(_BMP_HEAD.size))
    gap = file.read(min(max(start - _BMP_HEAD.size, 0), 4096))
    return gap[max(gap.rfind(_KEY.encode()), 0) :].rstrip(b"\0")


def _match(text: object) -> str | None:
    """The fingerprint, if this is our text and nothing else: anything more was written by somebody else."""
    if isinstance(text, bytes):
        text = text.decode("latin-1")
    found = _TEXT.fullmatch(text) if isinstance(text, str) else None
    return found[1] if found else None
