"""What tensors another program's file holds: their shapes and types, by headers alone where the format allows that."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from tvae.pipeline.errors import InputError
from tvae.pipeline.files.pickled_tensors import is_pickled, read_pickled, spec_of
from tvae.pipeline.files.tensor_header import read_header
from tvae.pipeline.files.tensor_types import STORED_TYPES
from tvae.pipeline.latents.foreign.tensors import SUFFIXES, tensors_in

__all__ = ["ShownTensor", "specs_in"]


class ShownTensor(NamedTuple):
    """Its shape, and its type by torch's name."""

    shape: tuple[int, ...]
    dtype: str


def specs_in(path: Path) -> dict[str, ShownTensor]:
    """All tensors of a file, by name. Raises InputError."""
    suffix = path.suffix.lower()
    try:
        if is_pickled(path) and suffix not in SUFFIXES:
            found = {name: spec_of(tensor) for name, tensor in read_pickled(path).items()}
        elif suffix in (".safetensors", ".sft", ".latent"):
            found = read_header(path).tensors
        else:
            tensors = tensors_in(path)
            return {name: ShownTensor((*t.shape,), str(t.dtype).removeprefix("torch.")) for name, t in tensors.items()}
    except OSError as error:
        raise InputError(f"cannot read '{path}': {error.strerror or error}") from error
    except ValueError as error:
        raise InputError(f"cannot read '{path}': {error}") from error
    return {name: ShownTensor(spec.shape, STORED_TYPES.get(spec.dtype, spec.dtype)) for name, spec in found.items()}
