"""webdataset's shards: tar archives, in which the members of a sample stand one after another under its key.

Read in webdataset 1.0.2 (``tariterators``, ``autodecode``). Members of a sample, with the decoder that webdataset has
for each by its name:

- *KEY.latent.npy*: the latents (decoder *npy*), and with --flip *KEY.flipped.npy*;
- *KEY.json*: source, sizes, crop, VAE (decoder *json*);
- texts from beside the source under their own suffix, such as *KEY.txt*. A *KEY.json* among them becomes
  *KEY.source.json*, and that, if it is one of them, *KEY.source.source.json*.

Headers say nothing of the machine and the time of writing, so that the same samples make the same bytes.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from typing import Any

import numpy as np

from tvae.pipeline.caches.shards.form import Sample, ShardForm

__all__ = ["WEBDATASET"]

_OURS = ("latent.npy", "flipped.npy", "json")


def _members(sample: Sample) -> Iterator[tuple[str, bytes]]:
    yield "latent.npy", _npy(sample.latents)
    if sample.flipped is not None:
        yield "flipped.npy", _npy(sample.flipped)
    yield "json", json.dumps(sample.facts, sort_keys=True).encode()
    for suffix, content in sorted(sample.texts.items()):
        taken = suffix in _OURS or suffix.startswith("source.")
        yield (f"source.{suffix}" if taken else suffix), content


def _npy(value: np.ndarray) -> bytes:
    file = BytesIO()
    np.lib.format.write_array(file, value, version=(1, 0), allow_pickle=False)
    return file.getvalue()


def _sample(sample: Sample) -> bytes:
    parts: list[bytes] = []
    for suffix, content in _members(sample):
        info = tarfile.TarInfo(f"{sample.key}.{suffix}")
        info.size, info.mode = len(content), 0o644
        parts += [info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape"), content]
        parts.append(bytes(-len(content) % tarfile.BLOCKSIZE))
    return b"".join(parts)


def _head(sizes: Sequence[int], settings: Mapping[str, Any]) -> bytes:
    return b""


def _tail(size: int) -> bytes:
    """Two blocks of zeros, and more up to a whole record."""
    least = 2 * tarfile.BLOCKSIZE
    return bytes(least + -(size + least) % tarfile.RECORDSIZE)


def _size(samples: int, payload: int, settings: Mapping[str, Any]) -> int:
    return payload + len(_tail(payload))


WEBDATASET = ShardForm(
    name="webdataset",
    file="{:05d}.tar".format,
    limit=10**9,
    most=1 << 40,
    sample=_sample,
    head=_head,
    tail=_tail,
    size=_size,
)
