"""What tensors another program's file holds: their shapes and types, of safetensors by the header alone."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from tvae.pipeline.errors import InputError
from tvae.pipeline.files.content_checksum import TYPES
from tvae.pipeline.files.tensor_header import read_header
from tvae.pipeline.latents.foreign.tensors import SAFETENSORS, tensors_in

__all__ = ["StoredTensor", "specs_in"]

_TYPES = {
    **TYPES,
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "C64": "complex64",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
}
"""torch's names of types, by safetensors' names; torch has none of the others."""


class StoredTensor(NamedTuple):
    """Its shape, and its type by torch's name."""

    shape: tuple[int, ...]
    dtype: str


def specs_in(path: Path) -> dict[str, StoredTensor]:
    """All tensors of a file, by name. Raises InputError."""
    if path.suffix.lower() not in SAFETENSORS:
        return {
            name: StoredTensor(tuple(value.shape), str(value.dtype).removeprefix("torch."))
            for name, value in tensors_in(path).items()
        }
    try:
        header = read_header(path)
    except OSError as error:
        raise InputError(f"cannot read '{path}': {error.strerror or error}") from error
    except ValueError as error:
        raise InputError(f"cannot read '{path}': {error}") from error
    return {name: StoredTensor(spec.shape, _TYPES.get(spec.dtype, spec.dtype)) for name, spec in header.tensors.items()}
