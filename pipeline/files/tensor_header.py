"""The header of a safetensors file: what it holds, read without torch or a single value."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any

from tvae.pipeline.files.checked import open_regular, parse_json
from tvae.pipeline.files.record import Count, from_json

__all__ = ["BITS", "Header", "TensorSpec", "header_of", "read_header", "read_texts"]

MOST_BYTES = 16 << 20
"""The longest header that is read; Python's objects of it take some twelve times as much."""


DAMAGED = "damaged: the file has other bytes than its header promises"
BITS = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8),
    **{"F6_E2M3": 6, "F6_E3M2": 6, "F4": 4},
}
"""Of a value, by safetensors' names of types."""


@dataclass(frozen=True)
class _Tensor:
    dtype: str
    shape: tuple[Count, ...]
    data_offsets: tuple[int, int]


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
    with open_regular(path) as file:
        return header_of(file)[0]


def header_of(file: BufferedReader) -> tuple[Header, dict[str, int]]:
    """Of an open file, from its beginning; and where each tensor's values begin. `ValueError` as `read_header`."""
    found, start, size = _read(file)
    texts = found.pop("__metadata__", {})
    if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
        raise ValueError("not a safetensors file: its metadata are no texts")
    tensors = {name: from_json(_Tensor, tensor, name) for name, tensor in found.items()}
    end = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].data_offsets):
        begin, stop = tensor.data_offsets
        bits = BITS.get(tensor.dtype)
        if begin != end or stop < begin or bits is None or 8 * (stop - begin) != math.prod(tensor.shape) * bits:
            raise ValueError(f"not a safetensors file: tensor '{name}' has no place of its size")
        end = stop
    if start + end != size:
        raise ValueError(DAMAGED)
    specs = {name: TensorSpec(tensor.dtype, tensor.shape) for name, tensor in tensors.items()}
    return Header(specs, texts), {name: start + tensor.data_offsets[0] for name, tensor in tensors.items()}


def read_texts(path: Path) -> dict[str, str]:
    """The texts that a file carries, in a tenth of the time of `read_header`: to know one of very many files again.

    `ValueError` for a file that has other bytes than its header promises, or no such header; `OSError` when it cannot
    be read.
    """
    with open_regular(path) as file:
        header, start, size = _read(file)
    texts = header.pop("__metadata__", {})
    try:
        end = max((int(tensor["data_offsets"][1]) for tensor in header.values()), default=0)
    except (TypeError, KeyError, IndexError, ValueError) as error:
        raise ValueError("not a safetensors file: a tensor has no place") from error
    if start + end != size:
        raise ValueError(DAMAGED)
    return {str(key): str(value) for key, value in texts.items()} if isinstance(texts, dict) else {}


def _read(file: BufferedReader) -> tuple[dict[str, Any], int, int]:
    """The header as JSON, where the values begin, and the file's size."""
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "little")
    if length > size - 8:
        raise ValueError("not a whole safetensors file (truncated, or of another format)")
    if length > MOST_BYTES:
        raise ValueError(f"its header has {length >> 20} MiB, and tvae reads headers of {MOST_BYTES >> 20} MiB at most")
    header = parse_json(file.read(length))
    if not isinstance(header, dict):
        raise ValueError("not a safetensors file: its header is no object")
    return header, 8 + length, size
