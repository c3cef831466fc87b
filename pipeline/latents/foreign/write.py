"""Latents in files of other programs: the values alone, as ComfyUI, NumPy and PyTorch keep them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tvae.pipeline.errors import UsageError
from tvae.pipeline.files.atomic import write_error
from tvae.pipeline.files.stored import Array, Arrays, Pickled, Stored, Tensors, write_stored
from tvae.pipeline.latents.tensor_file import check_finite, own_memory

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["WRITTEN", "write_foreign"]


def write_foreign(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write ``latents``, or ``mean`` and ``logvar``, each [C, h, w] or [C, t, h, w], in one step.

    NumPy has no bfloat16: such values become float32, which holds all of them. Raises UsageError for a file that cannot
    hold two tensors, InputError for values that are not finite, OutputError.
    """
    check_finite(tensors, str(path))
    content = WRITTEN[path.suffix.lower()](path, {name: own_memory(value) for name, value in tensors.items()})
    try:
        write_stored(path, content)
    except OSError as error:
        raise write_error(path, error) from error


def _alone(path: Path, tensors: Mapping[str, Tensor]) -> Tensor:
    """The only tensor. Raises UsageError."""
    if len(tensors) != 1:
        raise UsageError(
            f"{path.name} can hold one tensor, and these latents are {' and '.join(tensors)}; write .npz or .pt"
        )
    return next(iter(tensors.values()))


def _array(value: Tensor) -> np.ndarray:
    import torch

    found: np.ndarray = (value.float() if value.dtype == torch.bfloat16 else value).numpy()
    return found


def _comfy(path: Path, tensors: Mapping[str, Tensor]) -> Stored:
    import torch

    value = _alone(path, tensors).unsqueeze(0).float().contiguous()
    return Tensors({"latent_tensor": value, "latent_format_version_0": torch.tensor([])})


WRITTEN: dict[str, Callable[[Path, Mapping[str, Tensor]], Stored]] = {
    ".latent": _comfy,
    ".npz": lambda _path, tensors: Arrays({name: _array(value) for name, value in tensors.items()}),
    ".npy": lambda path, tensors: Array(_array(_alone(path, tensors))),
    ".pt": lambda _path, tensors: Pickled(tensors),
    ".pth": lambda _path, tensors: Pickled(tensors),
}
"""By the end of a file's name."""
