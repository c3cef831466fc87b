"""dataset.toml of diffusion-pipe: a ``Directory`` for each ``[[directory]]``, with all that its table depends on.

What changes the table in a way that cannot be known before the trainer runs, and what tvae does not cache, is refused
by its name in the file.
"""

from __future__ import annotations

import math
import os
import reprlib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvae.pipeline.errors import UsageError
from tvae.pipeline.files.checked import read_bytes

__all__ = ["Directory", "read_settings"]

_MOST = 1 << 20
"""Bytes of the file."""
_LARGEST = 1 << 16
"""Of a side in pixels, and of a ratio."""
_ENTRIES = 1000
"""Of a list."""

_FREE = ("num_repeats", "subsample_ratio", "cache_shuffle_delimiter")
"""Settings that the cache does not depend on."""
_FLAGS = {
    "enable_ar_bucket": False,
    "shuffle_tags": False,
    "skip_empty_caption": True,
    "online_captions": False,
    "shuffle_metadata": True,
}
_OTHERS = ("resolutions", "min_ar", "max_ar", "num_ar_buckets", "ar_buckets", "frame_buckets", "size_buckets")
_REFUSED = {
    "mask_path": "masks change the table and are no latents of a VAE",
    "default_mask_file": "masks change the table and are no latents of a VAE",
    "control_path": "tvae makes no latents of control images",
}
_KNOWN = {*_FREE, *_FLAGS, *_OTHERS, "caption_prefix", "cache_shuffle_num"}


@dataclass(frozen=True)
class Directory:
    """One folder of images and videos, as diffusion-pipe is told of it."""

    path: str
    """As it was typed: the order of images is drawn from it."""
    ratios: tuple[float, ...]
    """Width by height, of buckets."""
    resolutions: tuple[float, ...] | None
    """Sides of squares that have the areas of buckets; None: there are ``sizes``."""
    sizes: tuple[tuple[int, int, int], ...]
    """(width, height, frames) of buckets that the user names, the longest first."""
    frames: tuple[int, ...]
    """Lengths of clips, from 1 for images on; where there are ``sizes`` they do not count."""
    prefix: str
    """Of captions."""
    skips_uncaptioned: bool
    shuffles: bool
    """Are images put into a random order before they are sorted into buckets?"""


def read_settings(path: Path) -> list[Directory]:
    """Raises UsageError for what is no such file, and for what is in it that tvae cannot cache."""
    try:
        data = tomllib.loads(read_bytes(path, _MOST).decode())
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is no dataset.toml of diffusion-pipe: {error}") from error
    folders = data.pop("directory", None)
    if not (isinstance(folders, list) and folders and all(isinstance(one, dict) for one in folders)):
        raise UsageError(f"{path} names no [[directory]], and so no images")
    try:
        found = [_directory({**data}, {**folder}) for folder in folders]
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from error
    seen: set[str] = set()
    for one in found:
        if (place := os.path.realpath(one.path)) in seen:
            raise UsageError(f"{path}: {one.path} is named twice, and both would have the same cache; name it once")
        seen.add(place)
    return found


def _directory(whole: Mapping[str, Any], own: dict[str, Any]) -> Directory:
    """ValueError says what is wrong."""
    path = own.pop("path", None)
    if not isinstance(path, str) or not path:
        raise ValueError("a [[directory]] has no path")
    if "\0" in path:
        raise ValueError(f"{reprlib.repr(path)}, a path, has a zero byte")
    for name in (*whole, *own):
        if name in _REFUSED:
            raise ValueError(f"{name}: {_REFUSED[name]}; leave the caching of this data set to diffusion-pipe")
        if name not in _KNOWN:
            raise ValueError(f"{reprlib.repr(name)} is no setting that tvae knows; take it out, or correct its name")
    said = {**whole, **own}
    flags = {name: said.get(name, default) for name, default in _FLAGS.items()}
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise ValueError(f"{name} is neither true nor false")
    if flags["shuffle_tags"] or said.get("cache_shuffle_num", 0) != 0:
        raise ValueError(
            "shuffle_tags and cache_shuffle_num put captions into a random order, another one in each run, which "
            "changes the table; set shuffle_tags = false and cache_shuffle_num = 0"
        )
    prefix = said.get("caption_prefix", "")
    if not isinstance(prefix, str):
        raise ValueError("caption_prefix is no text")
    frames = said.get("frame_buckets", [1])
    if not _are(frames, lambda one: type(one) is int and 0 < one < _LARGEST):
        raise ValueError("frame_buckets is no list of numbers of frames")
    lengths = tuple(sorted({1, *frames}))
    common = prefix, flags["skip_empty_caption"], flags["shuffle_metadata"]
    if "size_buckets" in said:
        sizes = _sizes(said["size_buckets"])
        return Directory(path, _rounded([w / h for w, h, _ in sizes]), None, sizes, lengths, *common)
    if "resolutions" not in whole:
        raise ValueError("resolutions are missing before the first [[directory]], where diffusion-pipe wants them")
    resolutions = [_side(one) for one in _listed(said, "resolutions")]
    ratios = _ratios(whole, said, flags["enable_ar_bucket"])
    return Directory(path, ratios, _rounded(resolutions), (), lengths, *common)


def _sizes(value: Any) -> tuple[tuple[int, int, int], ...]:
    def is_size(one: Any) -> bool:
        return isinstance(one, list) and len(one) == 3 and all(type(n) is int and 0 < n < _LARGEST for n in one)

    if not _are(value, is_size):
        raise ValueError("size_buckets is no list of [width, height, frames]")
    return tuple(sorted(((w, h, frames) for w, h, frames in value), key=lambda one: one[2], reverse=True))


def _ratios(whole: Mapping[str, Any], said: Mapping[str, Any], buckets: bool) -> tuple[float, ...]:
    import numpy as np

    if not buckets:
        return (1.0,)
    if said.get("ar_buckets"):
        return _rounded([_ratio(one) for one in _listed(said, "ar_buckets")])
    for name in ("min_ar", "max_ar", "num_ar_buckets"):
        if name not in whole:
            raise ValueError(f"{name} is missing before the first [[directory]], where diffusion-pipe wants it")
    least, most, count = _number(said["min_ar"]), _number(said["max_ar"]), said["num_ar_buckets"]
    if type(count) is not int or not 0 < count <= _ENTRIES:
        raise ValueError("num_ar_buckets is no number of buckets")
    return _rounded(np.geomspace(least, most, num=count).tolist())


def _rounded(values: list[float]) -> tuple[float, ...]:
    """In order, without doubles, to three digits: as they stand in names of folders. Whole numbers stay whole where all
    are: the order of images is drawn from how they are written."""
    found = sorted({round(one, 3) for one in values})
    if found[0] == 0:
        raise ValueError(f"{min(values)!r} is no size or ratio")
    return tuple(found if all(type(one) is int for one in found) else map(float, found))


def _side(value: Any) -> float:
    """Of a square of this area; whole numbers stay whole."""
    if isinstance(value, list) and len(value) == 2:
        return math.sqrt(_number(value[0]) * _number(value[1]))
    return _number(value)


def _ratio(value: Any) -> float:
    if isinstance(value, list) and len(value) == 2:
        return _number(value[0]) / _number(value[1])
    return _number(value)


def _listed(said: Mapping[str, Any], name: str) -> list[Any]:
    if not _are(said[name], lambda one: True):
        raise ValueError(f"{name} is no list of numbers")
    found: list[Any] = said[name]
    return found


def _are(value: Any, fits: Any) -> bool:
    return isinstance(value, list) and 0 < len(value) <= _ENTRIES and all(map(fits, value))


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not 0 < value < _LARGEST:
        raise ValueError(f"{reprlib.repr(value)} is no size or ratio")
    return float(value) if type(value) is float else value
