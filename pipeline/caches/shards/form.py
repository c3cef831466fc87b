"""What a form of shards says: names of files, bytes of a sample, and what stands around the samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

import numpy as np

__all__ = ["Sample", "ShardForm", "key_of"]


Index = Callable[[Sequence[tuple[str, int, int, Mapping[str, Any]]]], bytes]
"""Of all shards, each by its name, bytes, number of samples, and settings."""


@dataclass(frozen=True)
class Sample:
    """One image, or one piece of a clip."""

    key: str
    """Its place below the inputs without the suffix, parts separated by ``/``; no dot in the last one."""
    latents: np.ndarray
    """[C, h, w] of an image, [C, t, h, w] of a clip and for VAEs of videos; float32 or float16."""
    facts: Mapping[str, Any]
    """Plain values for JSON: source, sizes, crop, VAE."""
    flipped: np.ndarray | None = None
    """The same of the mirrored image, where it was asked for."""
    texts: Mapping[str, bytes] = field(default_factory=dict)
    """Contents of the text files beside the source, by their suffix in lower case without the first dot."""


@dataclass(frozen=True)
class ShardForm:
    """Where a function gets ``settings``, they are those of the whole shard: ``flip``, whether samples have mirrored
    latents, and ``limit``, bytes of a shard at most."""

    name: str
    file: Callable[[int], str]
    """Name of the shard with a number from 0 up."""
    limit: int
    """Bytes of a shard at most, where the request names none. A sample above it has a shard of its own."""
    most: int
    """No limit may be above it, nor a single sample."""
    sample: Callable[[Sample], bytes]
    """ValueError for a text that the form has no room for."""
    head: Callable[[Sequence[int], Mapping[str, Any]], bytes]
    """What stands before samples of these sizes, in bytes."""
    tail: Callable[[int], bytes]
    """What stands after so many bytes of head and samples."""
    size: Callable[[int, int, Mapping[str, Any]], int]
    """Bytes of a shard with so many samples of so many bytes together."""
    index: Index | None = None
    """Bytes of the file that lists all shards; None: there is none."""
    index_name: str | None = None


def key_of(place: PurePosixPath, start: int | None = None) -> str:
    """Of a source below the inputs, and of the piece of it that begins with a frame; None: of all of it.

    webdataset takes everything from the first dot of a name on for the member's own suffix, and leaves out what is in
    folders such as ``__a__``.
    """
    name = place.stem.replace(".", "_") + ("" if start is None else f"_{start:06d}")
    parts = [*place.parts[:-1], name]
    if parts[0].startswith("__"):
        parts[0] = parts[0][1:]
    return "/".join(parts)
