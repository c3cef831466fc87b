"""The header of a safetensors file, read without the library, torch or a single value.

Layout (safetensors format): 8 bytes little-endian length, that many bytes of JSON (tensor name to dtype, shape and
data offsets; `__metadata__` to texts), then the data.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

MAX_HEADER = 100_000_000
"""Bytes; the same bound as the safetensors library's own."""


@dataclass(frozen=True)
class TensorSpec:
    """One stored tensor: `dtype` by safetensors' names (`F32`, `BF16`, …)."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Header:
    """What a file holds, and the texts it carries."""

    tensors: dict[str, TensorSpec]
    metadata: dict[str, str]


def read_header(path: Path) -> Header:
    """`ValueError` says why it is not a whole safetensors file; `OSError` when it cannot be read.

    A file that ends before its last tensor does, or after it, is not whole.
    """
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        text = file.read(length) if length <= MAX_HEADER else b""
    size = path.stat().st_size
    try:
        content = json.loads(text)
        metadata = {str(key): str(value) for key, value in content.pop("__metadata__", {}).items()}
        tensors = {name: TensorSpec(str(s["dtype"]), tuple(map(int, s["shape"]))) for name, s in content.items()}
        end = 8 + length + max((int(s["data_offsets"][1]) for s in content.values()), default=0)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError):
        raise ValueError("not a whole safetensors file (truncated, or of another format)") from None
    if size != end:
        raise ValueError(f"damaged: {size} bytes, its header promises {end}")
    return Header(tensors, metadata)
