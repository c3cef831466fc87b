"""Attributes that somebody gave to weights (``self.weight.gain = 2``): the exporter's stand-ins have none of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

__all__ = ["Marks", "mark", "marks_of"]

Marks = Mapping[str, Mapping[str, Any]]
"""By the name of a weight, and of the attribute."""


def marks_of(module: nn.Module) -> Marks:
    """Those of a module's parameters and buffers."""
    return {name: dict(vars(weight)) for name, weight in _weights(module) if vars(weight)}


def mark(module: nn.Module, marks: Marks) -> None:
    """Give them to what stands for these weights now."""
    for name, weight in _weights(module) if marks else ():
        for attribute, value in marks.get(name, {}).items():
            if not hasattr(weight, attribute):
                setattr(weight, attribute, value)


def _weights(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)
