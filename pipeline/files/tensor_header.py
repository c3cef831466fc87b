"""The header of a safetensors file: what it holds, read without torch or a single value."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open

__all__ = ["Header", "TensorSpec", "read_header"]


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
    try:
        with safe_open(path, framework="np") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118, not a mapping
            tensors = {name: TensorSpec(part.get_dtype(), tuple(part.get_shape())) for name, part in slices.items()}
            return Header(tensors, dict(file.metadata() or {}))
    except SafetensorError as error:
        if "incomplete metadata" in str(error):
            raise ValueError("damaged: the file has other bytes than its header promises") from None
        raise ValueError("not a whole safetensors file (truncated, or of another format)") from None
