"""Building a module from a configuration that anybody may have written: no larger than its weights justify."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from tvae.pipeline.errors import UsageError
from tvae.pipeline.files.tensor_header import TensorSpec

__all__ = ["bounded_build"]

_FACTORIES: frozenset[Callable[..., Any]] = frozenset(
    {torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn, torch.arange, torch.linspace, torch.eye}
)
TENSORS, VALUES = 4, 4
"""Times as many tensors, and values in them, as the weights' files hold; some are replaced while a module is made."""
MORE_TENSORS, MORE_VALUES = 4096, 1 << 24
"""And so many that no file holds, such as tables of positions."""


class bounded_build(TorchFunctionMode):
    """While it is active in this thread, making more or larger tensors than the stored ones justify is a UsageError.

    They are counted before they are allocated. where: the configuration's name, for the message. halves: 2, if what is
    stored is one side of the model.
    """

    def __init__(self, stored: Mapping[str, TensorSpec], where: str, halves: int = 1) -> None:
        super().__init__()
        self._where = where
        self._tensors = halves * TENSORS * len(stored) + MORE_TENSORS
        self._values = halves * VALUES * sum(math.prod(spec.shape) for spec in stored.values()) + MORE_VALUES

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _FACTORIES:
            self._tensors -= 1
            self._values -= _count(args)
            if self._tensors < 0 or self._values < 0:
                raise UsageError(f"'{self._where}' asks for a model that is far larger than the weights beside it")
        return func(*args, **kwargs or {})


def _count(args: tuple[Any, ...]) -> int:
    """Values of a tensor that is made with these arguments; numbers that are no sizes count as one more."""
    sizes = args[0] if args and isinstance(args[0], (tuple, list)) else args
    return math.prod(max(1, size) for size in sizes if type(size) is int)
