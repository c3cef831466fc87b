"""MosaicML Streaming's shards (MDS): ``shard.00000.mds`` and so on, and ``index.json``, which lists them.

Read in mosaicml-streaming 0.13.0 (``base/format/mds``, ``base/format/base``). All numbers are little-endian. A shard:

- the number of samples, uint32; where each begins, and where the last ends, uint32 from the beginning of the file;
- the shard's settings as JSON: version 2, names and encodings of the columns in alphabetical order;
- the samples: the bytes of each column, uint32 each, then the columns.

No column's encoding is pickle. Columns: ``caption``, *str*, of ``.txt`` or ``.caption``, empty where there is none;
``facts``, *json*, source, sizes, crop, VAE; with --flip ``flipped``; ``key``, *str*; ``latent``, *ndarray*; ``texts``,
*json*, the texts beside the source by their suffix.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tvae.pipeline.caches.shards.form import Sample, ShardForm

__all__ = ["MDS"]

_VALUES = {"float16": 18, "float32": 34}
"""Numbers of types of values."""
_SHAPES = ("<u1", "<u2", "<u4", "<u8")
"""Types that a shape is written in, by their number."""


def _columns(flip: bool) -> dict[str, str]:
    mirrored = {"flipped": "ndarray"} if flip else {}
    return {"caption": "str", "facts": "json", **mirrored, "key": "str", "latent": "ndarray", "texts": "json"}


def _config(settings: Mapping[str, Any]) -> dict[str, Any]:
    columns = _columns(settings["flip"])
    return {
        "version": 2,
        "format": "mds",
        "compression": None,
        "hashes": [],
        "size_limit": settings["limit"],
        "column_names": [*columns],
        "column_encodings": [*columns.values()],
        "column_sizes": [None] * len(columns),
    }


def _sample(sample: Sample) -> bytes:
    texts = {suffix: _text(suffix, content) for suffix, content in sorted(sample.texts.items())}
    key = sample.key.encode(errors="surrogateescape")
    _text("name", key)
    columns = {
        "caption": texts.get("txt", texts.get("caption", "")).encode(),
        "facts": json.dumps(sample.facts, sort_keys=True).encode(),
        "key": key,
        "latent": _array(sample.latents),
        "texts": json.dumps(texts, sort_keys=True).encode(),
    }
    if sample.flipped is not None:
        columns["flipped"] = _array(sample.flipped)
    encoded = [columns[name] for name in _columns(sample.flipped is not None)]
    return struct.pack(f"<{len(encoded)}I", *map(len, encoded)) + b"".join(encoded)


def _text(name: str, content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"its {name} is no UTF-8 text, which MDS wants ({error.reason})") from None


def _array(value: np.ndarray) -> bytes:
    """Type; axes and type of the shape; shape; values."""
    kind = next(n for n in range(4) if max(value.shape) < 1 << (8 << n))
    head = bytes([_VALUES[value.dtype.name], value.ndim << 2 | kind])
    ordered = np.ascontiguousarray(value, value.dtype.newbyteorder("<"))
    return head + np.array(value.shape, _SHAPES[kind]).tobytes() + ordered.tobytes()


def _head(sizes: Sequence[int], settings: Mapping[str, Any]) -> bytes:
    config = json.dumps(_config(settings), sort_keys=True).encode()
    begin = 4 + 4 * (len(sizes) + 1) + len(config)
    offsets = np.cumsum([begin, *sizes], dtype=np.int64).astype("<u4")
    return struct.pack("<I", len(sizes)) + offsets.tobytes() + config


def _tail(size: int) -> bytes:
    return b""


def _size(samples: int, payload: int, settings: Mapping[str, Any]) -> int:
    return len(_head((), settings)) + 4 * samples + payload


def _index(shards: Sequence[tuple[str, int, int, Mapping[str, Any]]]) -> bytes:
    listed = [
        {
            **_config(settings),
            "samples": samples,
            "raw_data": {"basename": name, "bytes": size, "hashes": {}},
            "zip_data": None,
        }
        for name, size, samples, settings in shards
    ]
    return json.dumps({"version": 2, "shards": listed}, sort_keys=True).encode()


MDS = ShardForm(
    name="mds",
    file="shard.{:05d}.mds".format,
    limit=1 << 26,
    most=(1 << 32) - 1,
    sample=_sample,
    head=_head,
    tail=_tail,
    size=_size,
    index=_index,
    index_name="index.json",
)
