"""Writes safetensors files with a checksum. The same content gives the same bytes: safetensors' own writer orders texts
at random."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tvae.pipeline.files.content_checksum import CHECKSUM, TYPES, of_tensors, type_name
from tvae.pipeline.files.tensor_header import TensorSpec

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["FLOATING", "Digest", "save_file", "save_plain", "spec_of"]

FLOATING = {name: ours for name, ours in TYPES.items() if "float" in ours}
"""Types of values of latents: torch's names, by safetensors' names."""
_ALIGNED = 8
_BUFFER = 1 << 16
"""Small files are written at once; where it is not said, ``open`` asks whether the file is a terminal."""


class Digest(Protocol):
    """Of ``hashlib``."""

    def update(self, data: Any, /) -> None:
        """The next bytes."""


def spec_of(tensor: Tensor) -> TensorSpec:
    """As the header of a file would describe it."""
    return TensorSpec(type_name(tensor.dtype) or str(tensor.dtype), tuple(tensor.shape))


def save_file(
    tensors: Mapping[str, Tensor], path: Path, metadata: Mapping[str, str], digest: Digest | None = None
) -> str:
    """Contiguous tensors on the CPU, and texts in the order given; returns the checksum, which follows them. digest:
    takes all bytes of the file.

    `OSError` where it cannot be written.
    """
    checksum = of_tensors(tensors, metadata)
    save_plain(tensors, path, {**metadata, CHECKSUM: checksum}, digest)
    return checksum


def save_plain(
    tensors: Mapping[str, Tensor], path: Path, metadata: Mapping[str, str], digest: Digest | None = None
) -> None:
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
    with open(path, "wb", buffering=_BUFFER) as file:
        file.write(head := len(text).to_bytes(8, "little") + text)
        if digest is not None:
            digest.update(head)
        for tensor in tensors.values():
            file.write(values := tensor.detach().reshape(-1).view(torch.uint8).numpy().data)
            if digest is not None:
                digest.update(values)
