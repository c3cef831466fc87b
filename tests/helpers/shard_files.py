"""Pictures for shards, and what tar shards hold, by tarfile alone."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

__all__ = ["photo", "samples_in"]


def photo(path: Path, seed: int) -> Path:
    """Writes a picture, 64x64, of 8x8 squares of one colour each."""
    path.parent.mkdir(parents=True, exist_ok=True)
    squares = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    Image.fromarray(squares.repeat(8, 0).repeat(8, 1)).save(path)
    return path


def samples_in(folder: Path) -> list[dict[str, Any]]:
    """Samples of all shards in order: ``key``, ``shard``, and members by their suffix."""
    found: list[dict[str, Any]] = []
    for shard, name, content in _members(folder):
        above, _, last = name.rpartition("/")
        stem, _, suffix = last.partition(".")
        key = f"{above}/{stem}" if above else stem
        if not found or (found[-1]["key"], found[-1]["shard"]) != (key, shard):
            found.append({"key": key, "shard": shard})
        assert suffix not in found[-1]
        found[-1][suffix] = _decoded(suffix, content)
    return found


def _members(folder: Path) -> Iterator[tuple[str, str, bytes]]:
    """(shard, name, content) of every member of all shards, by tarfile."""
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as archive:
            for member in archive:
                file = archive.extractfile(member)
                assert file is not None
                yield path.name, member.name, file.read()


def _decoded(suffix: str, content: bytes) -> Any:
    if suffix.endswith("npy"):
        return np.load(io.BytesIO(content), allow_pickle=False)
    return json.loads(content) if suffix == "json" else content
