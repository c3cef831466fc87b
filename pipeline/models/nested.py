"""Lists, tuples and dictionaries among the arguments of a call: their tensors apart from the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["Nested", "Slot", "apart", "together"]

_DEEPEST = 8
_PLAIN = (bool, int, float, str, type(None), torch.dtype, torch.device, torch.memory_format)


@dataclass(frozen=True)
class Slot:
    """The place of a tensor that varies from call to call, by its name: ``scale[0]``."""

    name: str


@dataclass(frozen=True)
class Nested:
    """A container: its kind, and its items (with their keys in a dictionary)."""

    kind: str
    items: tuple[Any, ...]


_MADE: Mapping[str, Callable[[list[Any]], Any]] = {"list": list, "tuple": tuple, "Size": torch.Size, "dict": dict}


def apart(value: Any, name: str, tensors: dict[str, Tensor], depth: int = 0) -> Any:
    """The value with slots for its tensors, which are put into ``tensors`` by their names. Raises TypeError with the
    name and type of what can be neither baked into a graph nor given to it."""
    kind = type(value)
    if isinstance(value, Tensor):
        tensors[name] = value
        return Slot(name)
    if kind in _PLAIN:
        return value
    if depth < _DEEPEST and kind in (list, tuple, torch.Size):
        items = tuple(apart(v, f"{name}[{n}]", tensors, depth + 1) for n, v in enumerate(value))
        return Nested(kind.__name__, items)
    if depth < _DEEPEST and kind is dict and all(type(key) in (str, int) for key in value):
        pairs = ((key, apart(v, f"{name}[{key!r}]", tensors, depth + 1)) for key, v in value.items())
        return Nested("dict", tuple(pairs))
    raise TypeError(f"'{name}' is a {kind.__name__}")


def together(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The value again, with these tensors in its slots."""
    if isinstance(value, Slot):
        return tensors[value.name]
    if not isinstance(value, Nested):
        return value
    if value.kind == "dict":
        return {key: together(v, tensors) for key, v in value.items}
    return _MADE[value.kind]([together(v, tensors) for v in value.items])
