"""Tensors in a file of ``torch.save``, read by ``torch.load(weights_only=True)``: no code in such a file runs."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvae.pipeline.files.checked import open_regular
from tvae.pipeline.files.tensor_header import TensorSpec
from tvae.pipeline.files.tensor_types import STORED_TYPES

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["PICKLED", "is_pickled", "read_pickled", "spec_of"]

PICKLED = (".bin", ".ckpt", ".pt", ".pth", ".pkl")
"""Suffixes of files that ``torch.save`` writes."""
_TYPES = {f"torch.{name}": stored for stored, name in STORED_TYPES.items()}


def is_pickled(path: Path) -> bool:
    """Return whether a file is called like one of ``torch.save``."""
    return path.suffix.lower() in PICKLED


def read_pickled(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a dictionary of weights by name, or of one in it (``state_dict``).

    Values are mapped, and read from the disk when they are used. What is in the dictionary besides tensors is left out.
    Raises `ValueError` with one line that says why there are none, and `OSError` for a file that cannot be read.
    """
    import torch

    with open_regular(path):
        pass
    try:
        value: Any = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except OSError:
        raise
    except pickle.UnpicklingError:
        raise ValueError("it holds objects of Python's, or is damaged; save its tensors by name alone") from None
    except Exception as error:  # torch raises errors of many types for damage
        why = "damaged, of another format, or from before PyTorch 1.6"
        raise ValueError(f"not a whole file of torch.save ({why})") from error
    if isinstance(value, torch.Tensor):
        raise ValueError("it holds a tensor without a name")
    if not isinstance(value, Mapping):
        raise ValueError("it holds objects of Python's instead of tensors by name; save those alone")
    inner = {str(name): more for name, one in value.items() if isinstance(one, Mapping) and (more := _tensors(one))}
    if found := inner.get("state_dict") or _tensors(value):
        return found
    if len(inner) > 1:
        raise ValueError(f"it holds several sets of weights ({', '.join(sorted(inner))}); save one alone")
    if not inner:
        raise ValueError("it holds no tensors by name")
    return next(iter(inner.values()))


def spec_of(tensor: Tensor) -> TensorSpec:
    """Return a tensor's type, by safetensors' name of it, and shape."""
    return TensorSpec(_TYPES[str(tensor.dtype)], (*tensor.shape,))


def _tensors(value: Mapping[Any, Any]) -> dict[str, Tensor]:
    """Return the tensors under names, of types that are read."""
    import torch

    found: dict[str, Tensor] = {}
    for name, one in value.items():
        dense = isinstance(one, torch.Tensor) and one.layout == torch.strided
        if dense and isinstance(name, str) and str(one.dtype) in _TYPES:
            if not name.isprintable():
                raise ValueError(f"a tensor has the name {name!a}")
            found[name] = one.detach()
    return found
