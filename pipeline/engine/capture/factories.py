"""Functions of PyTorch that would make a symbolic size a constant while a model is traced."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

__all__ = ["SymbolicFactories"]


class SymbolicFactories(TorchFunctionMode):
    """Factories that would make a symbolic size a constant.

    Those of noise accept one only in the overload without a generator (who draws it is decided later), and
    ``linspace`` accepts none.
    """

    def __init__(self) -> None:
        super().__init__()
        self._of_sizes: dict[int, tuple[Tensor, Any]] = {}
        """Tensors that were made of sizes, by their identity: reading one gives the sizes again, not a constant."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if _writes(func, kwargs):
            self._of_sizes.clear()  # any of them may be written to
        if func in (torch.randn, torch.rand):
            kwargs.pop("generator", None)
        if func is torch.linspace:
            return _spaced(*args, **kwargs)
        if func is torch.tensor and args and _has_sizes(args[0]):
            return self._noted(func(*args, **kwargs), args[0])
        if func in _OF_SIZES and args and id(args[0]) in self._of_sizes:
            return self._read(func, args, kwargs)
        return func(*args, **kwargs)

    def _noted(self, tensor: Tensor, sizes: Any) -> Tensor:
        self._of_sizes[id(tensor)] = tensor, sizes
        return tensor

    def _read(self, func: Any, args: Any, kwargs: Any) -> Any:
        tensor, sizes = self._of_sizes[id(args[0])]
        name = _OF_SIZES[func]
        if name == "item" and not isinstance(sizes, list | tuple):
            return _number(sizes, float if tensor.is_floating_point() else int)
        result = func(*args, **kwargs)
        if not isinstance(sizes, list | tuple):
            return result
        if name in ("prod", "sum") and len(args) == 1 and not kwargs:
            return self._noted(result, math.prod(sizes) if name == "prod" else sum(sizes))
        if name == "getitem" and isinstance(args[1], int):
            return self._noted(result, sizes[args[1]])
        return result


_OF_SIZES = {
    **{torch.prod: "prod", Tensor.prod: "prod", torch.sum: "sum", Tensor.sum: "sum"},
    **{Tensor.item: "item", Tensor.__getitem__: "getitem"},
}


def _writes(func: Any, kwargs: Any) -> bool:
    name = getattr(func, "__name__", "")
    return (
        name in ("__setitem__", "__set__")
        or "out" in kwargs
        or (name.endswith("_") and not name.endswith("__"))
        or name.startswith("__i")
    )


def _has_sizes(data: Any) -> bool:
    """A size, or a list of numbers with sizes among them?"""
    if isinstance(data, torch.SymInt):
        return True
    numbers = isinstance(data, list | tuple) and all(isinstance(n, int | torch.SymInt) for n in data)
    return numbers and any(isinstance(n, torch.SymInt) for n in data)


def _number(size: Any, kind: type) -> Any:
    if not isinstance(size, torch.SymInt):
        return kind(size)
    return torch.sym_float(size) if kind is float else size


def _spaced(start: Any, end: Any, steps: Any, *, dtype: torch.dtype | None = None, **options: Any) -> Tensor:
    """``torch.linspace`` for any number of steps, rounded once."""
    wanted = dtype or torch.get_default_dtype()
    plain = wanted.is_floating_point and not isinstance(start, Tensor) and not isinstance(end, Tensor)
    if not isinstance(steps, torch.SymInt) or not plain or options.keys() - {"device", "requires_grad"}:
        return torch.linspace(start, end, steps, dtype=dtype, **options)
    count: Any = steps
    at = torch.arange(count, dtype=torch.float64, device=options.get("device"))
    return (at * ((end - start) / torch.sym_max(steps - 1, 1)) + start).to(wanted)
