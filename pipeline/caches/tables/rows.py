"""The images of a folder as diffusion-pipe lists them: which ones, with which captions, in which buckets."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvae.pipeline.caches.spec import Size
from tvae.pipeline.caches.tables.settings import Directory
from tvae.pipeline.errors import UsageError
from tvae.pipeline.files.checked import read_bytes, read_json

__all__ = ["Bucket", "Row", "buckets_of", "rows_of"]

Key = tuple[float, int] | tuple[int, int, int]
"""Of a group of images: (ratio, frames), or (width, height, frames) where the user names sizes."""

_CAPTIONS = "captions.json"
_NOT_MEDIA = (".txt", ".npz", ".json", ".parquet", ".bak", ".db")
_MOST_JSON = 1 << 30
_MOST_TEXT = 16 << 20
_VIDEOS = """
264 265 3g2 3gp a64 adp amr amv asf avc avi avr avs avs2 avs3 bmv cavs cdg cdxl cgi chk cif cpk dat dav dif
dnxhd dnxhr drc dv dvd f4v flm flv gsm gxf h261 h263 h264 h265 h26l hevc idf ifv imx ipu ism isma ismv ivf ivr
j2k kux lvf m1v m2t m2ts m2v m4a m4b m4v mj2 mjpeg mjpg mk3d mka mks mkv mods moflex mov mp4 mpc mpd mpeg mpg
mpo mts mvi mxf mxg nut obu ogg ogv psp qcif rcv rgb rm roq sdr2 ser sga svag svs ts ty ty+ v v210 vb vc1 vc2
viv vob webm wmv wtv xl xmv y4m yop yuv yuv10
"""
"""What imageio, which diffusion-pipe asks, takes for videos."""


@dataclass(frozen=True)
class Row:
    """An image of the table."""

    path: Path
    name: str
    """Its path as it stands in the table."""
    captions: tuple[str, ...]
    key: Key
    """Of the group that it is in."""


@dataclass(frozen=True)
class Bucket:
    """Images of one group in one size: what has a cache of its own. folder: its name below that of the model."""

    key: Key
    name: tuple[float, ...]
    """What the order of its images is drawn from."""
    size: Size
    folder: str


def rows_of(folder: Directory) -> tuple[list[Row | None], list[tuple[Path, str]]]:
    """All files of a folder that the trainer takes for media, in order of name; None for one that it leaves out. And
    those, each with the reason.

    Raises UsageError for what tvae cannot cache, and for what the trainer would stop at.
    """
    root, found, left_out = Path(folder.path), list[Row | None](), list[tuple[Path, str]]()
    if not os.path.isdir(root):
        raise UsageError(f"{folder.path}, a [[directory]] of the data set, is no folder")
    captions = _captions(root)
    for path in sorted(root.glob("*")):
        if not path.is_file() or path.suffix in _NOT_MEDIA:
            continue
        said = _of(path, captions)
        key = "it has no caption" if said is None and folder.skips_uncaptioned else _key(folder, _size(path))
        if isinstance(key, str):
            left_out.append((path, f"diffusion-pipe leaves it out: {key}"))
            found.append(None)
        else:
            if _is_no_unicode(str(path)):
                raise UsageError(f"{path}: its name is no Unicode, and diffusion-pipe would stop at it; rename it")
            texts = tuple(folder.prefix + one for one in ([""] if said is None else said))
            if any(map(_is_no_unicode, texts)):
                raise UsageError(f"{path}: a caption of {path.name} is no Unicode, and diffusion-pipe would stop at it")
            found.append(Row(path, str(path), texts, key))
    return found, left_out


def _is_no_unicode(text: str) -> bool:
    return not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text)


def _captions(root: Path) -> dict[str, Any] | None:
    """None: there is no file of captions."""
    path = root / _CAPTIONS
    if not path.exists():
        return None
    try:
        found = read_json(path, _MOST_JSON)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {path}: {error}") from error
    if not isinstance(found, dict):
        raise UsageError(f"{path} is no object with a list of captions for each image")
    return found


def _of(path: Path, captions: dict[str, Any] | None) -> list[str] | None:
    """Captions of an image; None: there are none."""
    if captions is not None:
        said = captions.get(path.name)
        if said is None or (isinstance(said, list) and said and all(isinstance(one, str) for one in said)):
            return said
        raise UsageError(f"{path.parent / _CAPTIONS}: what stands for {path.name} is no list of captions")
    text = path.with_suffix(".txt")
    if not text.exists():
        return None
    try:
        return [read_bytes(text, _MOST_TEXT).decode().replace("\r\n", "\n").replace("\r", "\n").strip()]
    except OSError as error:
        raise UsageError(f"cannot read {text}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{text} is no UTF-8 text ({error.reason}); diffusion-pipe would stop at it") from error


def _size(path: Path) -> Size | str:
    """Of an image as it is stored; or why it has none."""
    from PIL import Image

    if path.suffix == ".tar":
        raise UsageError(f"{path}: tvae does not look into archives for diffusion-pipe; unpack it")
    if path.suffix.lower()[1:] in _VIDEOS.split():
        raise UsageError(
            f"{path}: tvae caches no videos for diffusion-pipe; give tvae a dataset.toml without this folder"
        )
    try:
        with Image.open(path) as image:
            several = path.suffix == ".webp" and getattr(image, "n_frames", 1) > 1
            size = image.size
    except Exception as error:  # whatever it is, the trainer leaves the file out
        return f"Pillow does not open it ({type(error).__name__})"
    if several:
        raise UsageError(f"{path} is an animation, at which diffusion-pipe stops; take it out of the folder")
    return size


def _key(folder: Directory, size: Size | str) -> Key | str:
    """Of the group; or why it comes into none."""
    import numpy as np

    if isinstance(size, str):
        return size
    ratio = np.log(size[0] / size[1])
    apart = np.abs(ratio - np.log(np.array(folder.ratios)))
    if folder.resolutions is not None:
        return folder.ratios[int(np.argmin(apart))], 1
    candidates = [folder.sizes[n] for n in np.argsort(apart, kind="stable")]
    return next((one for one in candidates if one[2] <= 1), "size_buckets have none of one frame")


def buckets_of(folder: Directory, keys: Sequence[Key], step: int) -> list[Bucket]:
    """Of groups, in their order. step: sides are rounded to multiples of it."""
    found: dict[str, Bucket] = {}
    for key in keys:
        if len(key) == 3:
            width, height, frames = key
            name = f"cache_{width}x{height}x{frames}"
            found[name] = Bucket(key, key, (_near(width, step), _near(height, step)), name)
            continue
        for resolution in folder.resolutions or ():
            ratio, frames = key
            side = math.sqrt(resolution**2 * ratio)
            size = _near(side, step), _near(resolution**2 / side, step)
            name = f"cache_{ratio:.3f}x{size[0]}x{size[1]}x{frames}"
            found[name] = Bucket(key, (ratio, *size, frames), size, name)
    for one in found.values():
        if min(one.size) == 0:
            raise UsageError(f"{one.folder}, a bucket of {folder.path}, has no area in multiples of {step} pixels")
    return list(found.values())


def _near(value: float, step: int) -> int:
    return int(round(value / step) * step)
