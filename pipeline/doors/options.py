"""The options of ``encode`` and ``decode``, for type checkers and editors, and a check of what scripts pass."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from fractions import Fraction
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, TypedDict, Union, get_args, get_origin, get_type_hints

import numpy as np

from tvae.pipeline.errors import UsageError
from tvae.pipeline.jobs import Event
from tvae.pipeline.jobs.geometry import Align, Fit, Size
from tvae.pipeline.jobs.job import Alpha, Audio, Existing, PosteriorKind, Space, Split
from tvae.pipeline.media.sandbox import SandboxMode

__all__ = ["Options", "checked"]

Name = str | os.PathLike[str]
_EXACT = {"fps"}
"""Numbers that a job wants as fractions."""


class Options(TypedDict, total=False):
    """Fields of ``tvae.pipeline.jobs.Job``, which says what each does, but those of caches and of several processes.
    ``on_event`` is called with every event."""

    on_event: Callable[[Event], object]
    naming: str | None
    recursive: bool
    vae: Name | None
    vae_of: str | None
    allow_pickle: bool
    preset: Name
    dtype: str | None
    device: str | None
    devices: str | None
    split: Split
    strip: int | None
    vram: str | None
    spill: Name | None
    threads: int | None
    allow_whole: bool
    wait_for_kernels: bool
    batch: int | None
    max_pixels: int
    sandbox: SandboxMode
    size: Size | None
    fit: Fit
    align: Align
    posterior: PosteriorKind
    seed: int
    space: Space
    allow_other_vae: bool
    latents_space: Space | None
    latents_key: str | None
    codec: str | None
    crf: float | None
    pix_fmt: str | None
    encoder_options: tuple[tuple[str, str], ...]
    fps: Fraction | float | None
    audio: Audio
    alpha: Alpha
    color: str | None
    existing: Existing
    dry_run: bool


def checked(operation: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The same as fields of a job. Raises UsageError for a name that is none, or a value of another type."""
    known = get_type_hints(Options)
    found: dict[str, Any] = {}
    for name, value in options.items():
        if name not in known:
            raise UsageError(f"{operation}() has no option '{name}'; it has {', '.join(sorted(known))}")
        plain = _plain(value)
        if not _fits(plain, known[name]):
            raise UsageError(f"{operation}({name}={value!r}): {_told(known[name])} is wanted")
        if isinstance(plain, float | Fraction) and not math.isfinite(plain):
            raise UsageError(f"{operation}({name}={value!r}): a finite number is wanted")
        found[name] = float(plain) if isinstance(plain, Fraction) and name not in _EXACT else plain
    for name in _EXACT & found.keys():
        if isinstance(found[name], int | float):
            found[name] = Fraction(found[name]).limit_denominator(1_000_000)
    return found


def _plain(value: Any) -> Any:
    """Of Python's own types, which every part of a job takes: lists are tuples, paths are texts, and NumPy's numbers
    are the numbers that they say."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, list | tuple):
        return tuple(map(_plain, value))
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) and not isinstance(value, Fraction) else value


def _fits(value: Any, kind: Any) -> bool:
    """Is it of this type? Of those that ``Options`` has; a job itself checks which words it takes."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return any(_fits(value, one) for one in inner)
    if origin is Literal:
        return isinstance(value, str)
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        each = inner[:1] * len(value) if inner[-1] is Ellipsis else inner
        return len(each) == len(value) and all(map(_fits, value, each))
    if origin is not None:  # a function
        return callable(value)
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, {int: Integral, float: Real}.get(kind, kind))


def _told(kind: Any) -> str:
    """A type in words."""
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(_told(one) for one in get_args(kind) if get_origin(one) is not os.PathLike)
    if get_origin(kind) is Literal:
        return " or ".join(map(repr, get_args(kind)))
    plain = {NoneType: "None", str: "a text", int: "a whole number", float: "a number", bool: "True or False"}
    if kind in plain:
        return plain[kind]
    return str(getattr(kind, "__name__", kind)) if get_origin(kind) is None else str(kind).replace("typing.", "")
