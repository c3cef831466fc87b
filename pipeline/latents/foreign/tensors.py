"""The tensor of latents in another program's file: safetensors, ComfyUI's ``.latent``, NumPy's, or PyTorch's.

Source: ComfyUI's nodes ``SaveLatent`` and ``LoadLatent``: a safetensors file with ``latent_tensor``; without the
entry ``latent_format_version_0`` beside it, the values are scaled by 0.18215.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tvae.pipeline.errors import InputError
from tvae.pipeline.files.checked import open_regular
from tvae.pipeline.files.content_checksum import type_name

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["ALONE", "SUFFIXES", "tensor_in", "tensors_in"]

_KEYS = ("latents", "latent", "samples")
"""What programs call them, the most usual first."""
_SIZED = re.compile(r"latents_\d+x\d+(x\d+)?(_[a-z]+\d+)?")
"""What trainers call them, with their size and perhaps their type."""
ALONE = "latents"
"""What a tensor without a name is called."""
_COMFY, _COMFY_VERSION, _COMFY_FIRST_SCALE = "latent_tensor", "latent_format_version_0", 0.18215


def tensor_in(path: Path, key: str | None = None) -> Tensor:
    """The latents in a file, as they are stored: any shape, a floating type. key: the tensor's name; None: the name
    that programs use, or the only tensor there is.

    Raises InputError for a file that cannot be read, holds objects instead of plain tensors, or leaves a choice.
    """
    found = tensors_in(path)
    tensors = {name: value for name, value in found.items() if value.is_floating_point()}
    whole = {name: value for name, value in found.items() if name not in tensors}
    meant = key if key is not None else next((name for name in (_COMFY, *_KEYS) if name in whole), None)
    if meant in whole and (key is not None or not tensors):
        raise InputError(
            f"'{path}': its tensor '{meant}' {list(whole[meant].shape)} is of type {whole[meant].dtype}, and latents "
            "are floating-point numbers"
        )
    name = _named(path, tensors, key)
    value = tensors[name]
    if name == _COMFY and _COMFY_VERSION not in found:
        value = value.float() / _COMFY_FIRST_SCALE
    return value if type_name(value.dtype) in ("F32", "BF16", "F16") else value.float()


def tensors_in(path: Path) -> dict[str, Tensor]:
    """All tensors of a file, by name. Raises InputError."""
    read = _READERS.get(path.suffix.lower())
    if read is None:
        raise InputError(f"'{path}': latents are read from files ending in {', '.join(SUFFIXES)}")
    try:
        with open_regular(path):
            pass
        return read(path)
    except pickle.UnpicklingError:
        why = "holds objects of Python's, not plain tensors alone (or is damaged): opening them could run any program"
        raise InputError(f"'{path}' {why}; save the tensor as safetensors") from None
    except OSError as error:
        raise InputError(f"cannot read latents '{path}': {error.strerror or error}") from error
    except ValueError as error:
        objects = "allow_pickle" in str(error)  # which NumPy would have one pass
        why = "damaged, or it holds objects of Python's and not plain numbers" if objects else _first_line(error)
        raise InputError(f"cannot read latents '{path}': {why}") from error
    except Exception as error:  # whatever a damaged file makes a reader do, it is the file that is bad
        why = f"damaged, or no {path.suffix} file ({type(error).__name__}: {_first_line(error)})"
        raise InputError(f"cannot read latents '{path}': {why}") from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["no reason given"])[0]


def _named(path: Path, tensors: Mapping[str, Tensor], key: str | None) -> str:
    """The name of the latents. Raises InputError."""
    there = ", ".join(f"{name} {list(value.shape)}" for name, value in [*tensors.items()][:8]) or "none"
    if key is not None:
        if key not in tensors:
            raise InputError(f"'{path}' has no tensor '{key}'; it has {there}")
        return key
    for name in (_COMFY, *_KEYS):
        if name in tensors:
            return name
    of_trainers = [name for name in tensors if _SIZED.fullmatch(name)]
    if len(of_trainers) == 1:
        return of_trainers[0]
    if len(tensors) != 1:
        raise InputError(f"'{path}': which tensor holds the latents? Pass --key; it has {there}")
    return next(iter(tensors))


def _array(value: np.ndarray) -> Tensor:
    """Arrays of other types than NumPy's own numbers (bfloat16) are refused: ValueError."""
    import torch

    if value.dtype.kind not in "fiub":
        raise ValueError(f"an array of type {value.dtype}")
    return torch.from_numpy(np.ascontiguousarray(value.astype(value.dtype.newbyteorder("="))))


def _from_safetensors(path: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    return load_file(path)


def _from_npy(path: Path) -> dict[str, Tensor]:
    with path.open("rb") as file:
        return {ALONE: _array(np.load(file, allow_pickle=False))}


def _from_npz(path: Path) -> dict[str, Tensor]:
    with path.open("rb") as file, np.load(file, allow_pickle=False) as members:
        return {name: _array(members[name]) for name in members.files}


def _from_pt(path: Path) -> dict[str, Tensor]:
    """Return a tensor, or the tensors among a dictionary's values."""
    import torch

    from tvae.pipeline.engine.capture.quiet import without_warnings

    with without_warnings():  # of pickles that other programs than PyTorch wrote
        value: Any = torch.load(path, map_location="cpu", weights_only=True)
    if isinstance(value, torch.Tensor):
        return {ALONE: value}
    if not isinstance(value, Mapping):
        raise ValueError(f"a {type(value).__name__} instead of a tensor or a dictionary of them")
    return {str(name): tensor for name, tensor in value.items() if isinstance(tensor, torch.Tensor)}


_READERS: dict[str, Callable[[Path], dict[str, Tensor]]] = {
    ".safetensors": _from_safetensors,
    ".latent": _from_safetensors,
    ".npz": _from_npz,
    ".npy": _from_npy,
    ".pt": _from_pt,
    ".pth": _from_pt,
}
SUFFIXES = tuple(_READERS)
"""Of files that may hold latents of other programs."""
