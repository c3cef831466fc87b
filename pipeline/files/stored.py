"""Files that other programs read: safetensors, NumPy's, and plain tensors as torch.save writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tvae.pipeline.files.atomic import replacing
from tvae.pipeline.files.tensor_write import save_plain

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Array", "Arrays", "Pickled", "Stored", "Tensors", "fill", "write_stored"]


@dataclass(frozen=True)
class Tensors:
    """A safetensors file: contiguous tensors on the CPU, and texts."""

    tensors: Mapping[str, Tensor]
    texts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Array:
    """A .npy file."""

    value: np.ndarray


@dataclass(frozen=True)
class Arrays:
    """A .npz file."""

    arrays: Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Pickled:
    """What torch.save writes and ``torch.load(weights_only=True)`` reads: a tensor, or tensors and plain values."""

    values: Mapping[str, Any] | Sequence[Any] | Tensor


Stored = Tensors | Array | Arrays | Pickled


def write_stored(path: Path, content: Stored) -> None:
    """Under its final name in one step; makes the folder. `OSError` where it cannot be written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        fill(temporary, content)


def fill(temporary: Path, content: Stored) -> None:
    """Write a file that has its final name later. `OSError` where it cannot be written."""
    match content:
        case Tensors():
            save_plain(content.tensors, temporary, content.texts)
        case Array():
            with temporary.open("wb") as file:
                np.save(file, content.value, allow_pickle=False)
        case Arrays():
            with temporary.open("wb") as file:
                np.savez(file, **content.arrays)  # type: ignore[arg-type]
        case Pickled():
            import torch

            with temporary.open("wb") as file:
                torch.save(dict(content.values) if isinstance(content.values, Mapping) else content.values, file)
