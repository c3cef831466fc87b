"""Functions of PyTorch that would make a symbolic size a constant while a model is traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tvae.pipeline.engine.capture.drawn_numbers import check_generator
from tvae.pipeline.engine.capture.interpolated import interpolated_as
from tvae.pipeline.engine.capture.tensors_of_sizes import TensorsOfSizes
from tvae.pipeline.engine.capture.texts import TEXTS, text_of

__all__ = ["SymbolicFactories"]


class SymbolicFactories(TorchFunctionMode):
    """Factories that would make a symbolic size a constant.

    Those of noise accept one only in the overload without a generator (who draws it is decided later), and
    ``linspace`` accepts none; tensors of sizes have a file of their own, and so have texts of tensors, which come by
    here, too. model: that is traced. check: called before every operation.
    """

    def __init__(self, model: nn.Module, check: Callable[[], None]) -> None:
        super().__init__()
        self._model, self._check = model, check
        self._of_sizes = TensorsOfSizes()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._check()
        kwargs = dict(kwargs or {})
        if func in TEXTS:
            return text_of(self._model, func, args, kwargs)
        if "generator" in kwargs:
            check_generator(self._model, func, kwargs["generator"])
        if func in (torch.randn, torch.rand):
            kwargs.pop("generator", None)
        if func is torch.linspace:
            return _spaced(*args, **kwargs)
        if func is F.interpolate:
            args, kwargs = _in_its_type(*args, **kwargs)
        if func is torch.functional.broadcast_tensors:
            return _broadcast(list(args[0]) if len(args) == 1 and isinstance(args[0], list | tuple) else list(args))
        return self._of_sizes.call(func, args, kwargs)


def _in_its_type(input: Tensor, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of ``F.interpolate``: (input, size, scale_factor, mode, align_corners, recompute_scale_factor,
    antialias)."""
    mode, antialias = (*args[2:3], kwargs.get("mode", "nearest"))[0], (*args[5:6], kwargs.get("antialias", False))[0]
    return (input.to(interpolated_as(input, mode, antialias=antialias)), *args), kwargs


def _broadcast(tensors: list[Tensor]) -> tuple[Tensor, ...]:
    """``torch.broadcast_tensors`` as expansions, whose results are known to be views."""
    shape: list[Any] = []
    for tensor in tensors:
        sizes = [*tensor.shape]
        shape = [1] * (len(sizes) - len(shape)) + shape
        for d, size in enumerate(sizes, len(shape) - len(sizes)):
            if type(shape[d]) is int and shape[d] == 1:
                shape[d] = size
    return tuple(tensor.expand(shape) for tensor in tensors)


def _spaced(start: Any, end: Any, steps: Any, *, dtype: torch.dtype | None = None, **options: Any) -> Tensor:
    """``torch.linspace`` for any number of steps, rounded once."""
    wanted = dtype or torch.get_default_dtype()
    plain = wanted.is_floating_point and not isinstance(start, Tensor) and not isinstance(end, Tensor)
    if not isinstance(steps, torch.SymInt) or not plain or options.keys() - {"device", "requires_grad"}:
        return torch.linspace(start, end, steps, dtype=dtype, **options)
    count: Any = steps
    at = torch.arange(count, dtype=torch.float64, device=options.get("device"))
    return (at * ((end - start) / torch.sym_max(steps - 1, 1)) + start).to(wanted)
