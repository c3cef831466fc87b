"""Types of stored tensors: safetensors' names, and torch's."""

from __future__ import annotations

from tvae.pipeline.files.content_checksum import TYPES

__all__ = ["STORED_TYPES"]

STORED_TYPES = {
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
"""torch's names by safetensors' names, of types that may be read though no checksum of ours covers them, too."""
