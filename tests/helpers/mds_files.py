"""Folders of MosaicML's shards, read by this file alone, and by the reader of the package streaming where that is."""

from __future__ import annotations

import importlib.util
import json
import struct
import sys
import types
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

__all__ = ["by_streaming", "read_mds"]

KINDS = {18: np.float16, 34: np.float32}


def read_mds(folder: Path) -> list[dict[str, Any]]:
    """All samples in order; everything that stands twice is compared."""
    index = json.loads((folder / "index.json").read_text())
    assert index["version"] == 2
    return [sample for shard in index["shards"] for sample in _samples(folder, shard)]


def _samples(folder: Path, shard: dict[str, Any]) -> Iterator[dict[str, Any]]:
    data = (folder / shard["raw_data"]["basename"]).read_bytes()
    assert (shard["version"], shard["format"], shard["compression"], shard["zip_data"]) == (2, "mds", None, None)
    assert len(data) == shard["raw_data"]["bytes"]
    (count,) = struct.unpack_from("<I", data)
    assert count == shard["samples"]
    places = struct.unpack_from(f"<{count + 1}I", data, 4)
    config = json.loads(data[4 * (count + 2) : places[0]])
    assert all(shard[key] == value for key, value in config.items())
    assert places[-1] == len(data)
    names, encodings = config["column_names"], config["column_encodings"]
    assert names == sorted(names)
    assert config["column_sizes"] == [None] * len(names)
    for begin, end in pairwise(places):
        sizes, sample = struct.unpack_from(f"<{len(names)}I", data, begin), {}
        begin += 4 * len(names)
        for name, encoding, size in zip(names, encodings, sizes, strict=True):
            sample[name] = _value(encoding, data[begin : begin + size])
            begin += size
        assert begin == end
        yield sample


def _value(encoding: str, data: bytes) -> Any:
    if encoding == "ndarray":
        axes, width = data[1] >> 2, 1 << (data[1] & 3)
        parts = [data[2 + n * width : 2 + (n + 1) * width] for n in range(axes)]
        shape = [int.from_bytes(part, "little") for part in parts]
        return np.frombuffer(data, KINDS[data[0]], offset=2 + axes * width).reshape(shape)
    text = data.decode()
    return json.loads(text) if encoding == "json" else text


def by_streaming(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The same by streaming's own code. Its data sets of pictures, which need torchvision, are left out. Skips without
    the package."""
    found = importlib.util.find_spec("streaming")
    if found is None or found.submodule_search_locations is None:
        pytest.skip("streaming is not installed")
    package = types.ModuleType("streaming")
    package.__path__ = [*found.submodule_search_locations]
    monkeypatch.setitem(sys.modules, "streaming", package)
    try:
        from streaming.base.local import LocalDataset
    except ImportError as error:
        pytest.skip(f"streaming cannot be imported: {error}")
    dataset = LocalDataset(local=str(folder))
    for shard in dataset.shards:
        shard.validate(allow_unsafe_types=False)
    return [dataset[number] for number in range(dataset.size)]
