"""Runs that fill shards, with a stand-in for the VAE."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from shard_files import photo, samples_in

from tvae.pipeline.caches import Buckets, CacheRequest
from tvae.pipeline.jobs import Event

Fill = Callable[..., list[Event]]


@pytest.fixture
def fill(run: Any, tmp_path: Path) -> Fill:
    """Caches a folder ``in`` into ``out`` and gives all events; keywords change the request or the job."""

    def fill(*inputs: Path, shards: str | None = "25KB", **fields: Any) -> list[Event]:
        names = {"flip", "posterior", "architecture", "buckets", "frames", "stride", "start", "target_fps"}
        wanted = {name: fields.pop(name) for name in [*fields] if name in names}
        wanted.setdefault("buckets", Buckets(False))
        fields.setdefault("output", tmp_path / "out")
        fields.setdefault("size", (64, 64))
        request = CacheRequest("webdataset", shards=shards, **wanted)
        events: list[Event] = run("cache", *(inputs or (tmp_path / "in",)), cache=request, **fields)[1]
        return events

    return fill


@pytest.fixture
def photos(tmp_path: Path) -> Callable[..., Path]:
    """Writes pictures of 8x8 squares, 64x64, with captions, into ``in``."""

    def photos(count: int = 12, folder: str = "in") -> Path:
        for n in range(count):
            photo(tmp_path / folder / f"{n:03}.png", n)
            (tmp_path / folder / f"{n:03}.txt").write_text(f"caption {n}")
        return tmp_path / folder

    return photos


@pytest.fixture
def expected() -> Callable[[Path], np.ndarray]:
    """The stand-in's mean of a picture, [3, h, w] float32: what its squares look like to it."""

    def expected(path: Path) -> np.ndarray:
        rgb = np.asarray(Image.open(path).convert("RGB")).astype(np.float32) / 127.5 - 1
        return rgb[::8, ::8].transpose(2, 0, 1)

    return expected


@pytest.fixture
def samples() -> Callable[[Path], list[dict[str, Any]]]:
    """See ``samples_in``."""
    return samples_in


@pytest.fixture
def bytes_of() -> Callable[[Path], dict[str, bytes]]:
    """All that a folder holds but hidden files."""
    return lambda folder: {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}
