"""What functions of the CUDA driver and of NVRTC answer, through NVIDIA's bindings: an error's number, and values."""

from __future__ import annotations

from typing import Any

__all__ = ["value_of"]


def value_of(answer: tuple[Any, ...]) -> Any:
    """The value, None where there is none. Raises RuntimeError with the name of the error where it failed."""
    error, *values = answer
    if error.value:
        raise RuntimeError(error.name)
    return values[0] if values else None
