"""Images and videos of a folder as diffusion-pipe lists them: which ones, with which captions, in which buckets."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvae.pipeline.caches.spec import Size
from tvae.pipeline.caches.tables.settings import Directory
from tvae.pipeline.caches.tables.videos import is_video, measured
from tvae.pipeline.errors import InputError, UsageError
from tvae.pipeline.files.checked import read_bytes, read_json

__all__ = ["Bucket", "Row", "buckets_of", "rows_of"]

Key = tuple[float, int] | tuple[int, int, int]
"""Of a group of images or clips: (ratio, frames), or (width, height, frames) where the user names sizes."""

_CAPTIONS = "captions.json"
_NOT_MEDIA = (".txt", ".npz", ".json", ".parquet", ".bak", ".db")
_MOST_JSON = 1 << 30
_MOST_TEXT = 16 << 20


@dataclass(frozen=True)
class Row:
    """An image or a video of the table."""

    path: Path
    name: str
    """Its path as it stands in the table."""
    captions: tuple[str, ...]
    key: Key
    """Of the group that it is in."""
    is_video: bool = False
    """By its name; where one frame is left of it, it shares a group with images."""


@dataclass(frozen=True)
class Bucket:
    """Those of one group in one size: what has a cache of its own. folder: its name below that of the model."""

    key: Key
    name: tuple[float, ...]
    """What the order of its images is drawn from."""
    size: Size
    folder: str

    @property
    def frames(self) -> int:
        """As it is named; 1 of images."""
        return self.key[-1]


def rows_of(folder: Directory, fps: int | None = None) -> tuple[list[Row | None], list[tuple[Path, str]]]:
    """All files of a folder that the trainer takes for media, in order of name; None for one that it leaves out. And
    those, each with the reason. fps: frames a second of the model's clips; None: it is trained on images alone.

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
        key = "it has no caption" if said is None and folder.skips_uncaptioned else _key(folder, *_measured(path, fps))
        if isinstance(key, str):
            left_out.append((path, f"diffusion-pipe leaves it out: {key}"))
            found.append(None)
        else:
            if _is_no_unicode(str(path)):
                raise UsageError(f"{path}: its name is no Unicode, and diffusion-pipe would stop at it; rename it")
            texts = tuple(folder.prefix + one for one in ([""] if said is None else said))
            if any(map(_is_no_unicode, texts)):
                raise UsageError(f"{path}: a caption of {path.name} is no Unicode, and diffusion-pipe would stop at it")
            found.append(Row(path, str(path), texts, key, is_video(path)))
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


def _measured(path: Path, fps: int | None) -> tuple[Size | str, int]:
    """Size and number of frames; or why it has none."""
    if path.suffix == ".tar":
        raise UsageError(f"{path}: tvae does not look into archives for diffusion-pipe; unpack it")
    if not is_video(path):
        return _size(path), 1
    if fps is None:
        return "it is a video, and the model is trained on images alone", 0
    try:
        return measured(path, fps)
    except InputError as error:
        return f"it cannot be opened as a video ({error})", 0


def _size(path: Path) -> Size | str:
    """Of an image as it is stored; or why it has none."""
    from PIL import Image

    try:
        with Image.open(path) as image:
            several = path.suffix == ".webp" and getattr(image, "n_frames", 1) > 1
            size = image.size
    except Exception as error:  # whatever it is, the trainer leaves the file out
        return f"Pillow does not open it ({type(error).__name__})"
    if several:
        raise UsageError(f"{path} is an animation, at which diffusion-pipe stops; take it out of the folder")
    return size


def _key(folder: Directory, size: Size | str, frames: int) -> Key | str:
    """Of the group; or why it comes into none."""
    import numpy as np

    if isinstance(size, str):
        return size
    ratio = np.log(size[0] / size[1])
    apart = np.abs(ratio - np.log(np.array(folder.ratios)))
    if folder.resolutions is not None:
        lengths = [one for one in folder.frames if one <= frames]
        if not lengths or (frames > 1 and lengths[-1] == 1):
            return _too_short(frames, "frame_buckets")
        return folder.ratios[int(np.argmin(apart))], lengths[-1]
    candidates = [folder.sizes[n] for n in np.argsort(apart, kind="stable")]
    fitting = (one for one in candidates if one[2] <= frames and not (frames > 1 and one[2] == 1))
    if frames == 1:
        return next(fitting, "size_buckets have none of one frame")
    return next(fitting, _too_short(frames, "size_buckets"))


def _too_short(frames: int, name: str) -> str:
    return f"it has {frames} frames at the model's rate, too few for all {name} of videos"


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
