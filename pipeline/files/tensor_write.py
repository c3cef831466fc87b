"""Writes safetensors files with a checksum. The same content gives the same bytes: safetensors' own writer orders texts
at random."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tvae.pipeline.files.content_checksum import CHECKSUM, TYPES, of_tensors, type_name
from tvae.pipeline.files.tensor_header import TensorSpec

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["FLOATING", "save_file", "save_plain", "spec_of"]

FLOATING = {name: ours for name, ours in TYPES.items() if "float" in ours}
"""Types of values of latents: torch's names, by safetensors' names."""
_ALIGNED = 8


def spec_of(tensor: Tensor) -> TensorSpec:
    """As the header of a file would describe it."""
    return TensorSpec(type_name(tensor.dtype) or str(tensor.dtype), tuple(tensor.shape))


def save_file(tensors: Mapping[str, Tensor], path: Path, metadata: Mapping[str, str]) -> str:
    """Contiguous tensors on the CPU, and texts in the order given; returns the checksum, which follows them.

    `OSError` where it cannot be written.
    """
    checksum = of_tensors(tensors, metadata)
    save_plain(tensors, path, {**metadata, CHECKSUM: checksum})
    return checksum


def save_plain(tensors: Mapping[str, Tensor], path: Path, metadata: Mapping[str, str]) -> None:
    """The same without a checksum, for other programs. `OSError` where it cannot be written."""
    import torch

    tensors = dict(sorted(tensors.items(), key=lambda item: -item[1].element_size()))  # each is aligned to its type
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name, tensor in tensors.items():
        dtype = type_name(tensor.dtype)
        if not dtype:
            raise ValueError(f"{name} has values of type {tensor.dtype}, for which there is no name")
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNED)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            file.write(tensor.detach().reshape(-1).view(torch.uint8).numpy().data)
