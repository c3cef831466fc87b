"""Writes safetensors files of the same bytes for the same content: safetensors' own writer orders texts at random."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from tvae.pipeline.files.tensor_header import TensorSpec

__all__ = ["DTYPES", "save_file", "spec_of"]

DTYPES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
"""Types of values, by safetensors' names."""
_ALIGNED = 8


def spec_of(tensor: Tensor) -> TensorSpec:
    """As the header of a file would describe it."""
    return TensorSpec(DTYPES.get(tensor.dtype, str(tensor.dtype)), tuple(tensor.shape))


def save_file(tensors: Mapping[str, Tensor], path: Path, metadata: Mapping[str, str]) -> None:
    """Contiguous floating-point tensors on the CPU, and texts, in the order given. `OSError` where it cannot be
    written."""
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNED)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            file.write(tensor.detach().reshape(-1).view(torch.uint8).numpy().data)
