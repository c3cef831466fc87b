"""Adapt functions of PyTorch while a model is traced, and refuse random numbers that a graph would freeze."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tvae.pipeline.engine.capture.autocast import interpolation_dtype
from tvae.pipeline.engine.capture.constants import calling_module
from tvae.pipeline.engine.capture.thread_patch import patched
from tvae.pipeline.errors import UnsupportedOp

__all__ = ["TraceMode", "refusing_random_numbers"]

_FROZEN = "each call would draw another number, and a graph keeps one: use torch.rand or torch.randn"
_REPEATED = "each call would draw the same numbers, and a run draws others: keep them in a buffer of the model"
_SEEDS: tuple[tuple[Any, str], ...] = (
    *((place, name) for place in (torch, torch.random) for name in ("manual_seed", "seed", "set_rng_state")),
    *((torch.cuda, name) for name in ("manual_seed", "manual_seed_all", "seed", "seed_all", "set_rng_state")),
)
_STATES = {"seed", "getstate", "setstate", "get_state", "set_state"}


class TraceMode(TorchFunctionMode):
    """Calls functions of PyTorch so that symbolic sizes stay symbolic.

    Those that draw noise take a symbolic size only in the overload without a generator (a run draws from the caller's
    generator), and ``linspace`` takes none.
    """

    def __init__(self, model: nn.Module, check: Callable[[], None]) -> None:
        """check: called before every function."""
        super().__init__()
        self._model, self._check = model, check

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._check()
        kwargs = dict(kwargs or {})
        if isinstance(kwargs.get("generator"), torch.Generator) and kwargs["generator"] not in _process_generators():
            module = calling_module(self._model, sys._getframe(1))
            why = f"it draws from a generator of the model's own. {_REPEATED}"
            raise UnsupportedOp(f"torch.{func.__name__}", module, why, whole=False)
        if func in (torch.randn, torch.rand):
            kwargs.pop("generator", None)
        if func is torch.linspace:
            return _linspace(*args, **kwargs)
        if func is F.interpolate:
            args, kwargs = _interpolate_arguments(*args, **kwargs)
        if func is torch.functional.broadcast_tensors:
            return _broadcast(list(args[0]) if len(args) == 1 and isinstance(args[0], list | tuple) else list(args))
        return func(*args, **kwargs)


@contextmanager
def refusing_random_numbers(model: nn.Module) -> Iterator[None]:
    """Raise UnsupportedOp where this model draws from ``random`` or ``numpy.random``, or seeds PyTorch's generators."""

    def refusing(name: str, original: Any, why: str) -> Callable[..., Any]:
        def refused(*args: Any, **kwargs: Any) -> Any:
            frame = sys._getframe(2)  # the first frame is the thread patch
            if str(frame.f_globals.get("__name__", "")).partition(".")[0] in ("torch", "sympy", "tvae"):
                return original(*args, **kwargs)
            raise UnsupportedOp(name, calling_module(model, frame), why, whole=False)

        return refused

    with ExitStack() as places:
        for place, name in _SEEDS:
            seed = refusing(f"{place.__name__}.{name}", getattr(place, name), _REPEATED)
            places.enter_context(patched(place, name, seed))
        for module, kind in ((random, random.Random), (np.random, np.random.RandomState)):
            for name, function in [*vars(module).items()]:
                if isinstance(getattr(function, "__self__", None), kind) and name not in _STATES:
                    draw = refusing(f"{module.__name__}.{name}", function, _FROZEN)
                    places.enter_context(patched(module, name, draw))
        yield


def _process_generators() -> tuple[torch.Generator, ...]:
    of_cuda = torch.cuda.default_generators if torch.cuda.is_initialized() else ()
    return (torch.default_generator, *of_cuda)


def _interpolate_arguments(input: Tensor, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Cast the input of ``F.interpolate(input, size, scale_factor, mode, align_corners, recompute, antialias)``."""
    mode, antialias = (*args[2:3], kwargs.get("mode", "nearest"))[0], (*args[5:6], kwargs.get("antialias", False))[0]
    return (input.to(interpolation_dtype(input, mode, antialias=antialias)), *args), kwargs


def _broadcast(tensors: list[Tensor]) -> tuple[Tensor, ...]:
    """Compute ``torch.broadcast_tensors`` by expansions, whose results are known to be views."""
    shape: list[Any] = []
    for tensor in tensors:
        sizes = [*tensor.shape]
        shape = [1] * (len(sizes) - len(shape)) + shape
        for d, size in enumerate(sizes, len(shape) - len(sizes)):
            if type(shape[d]) is int and shape[d] == 1:
                shape[d] = size
    return tuple(tensor.expand(shape) for tensor in tensors)


def _linspace(start: Any, end: Any, steps: Any, *, dtype: torch.dtype | None = None, **options: Any) -> Tensor:
    """Compute ``torch.linspace`` by ``arange``, whose rows can be computed apart and whose length may be symbolic."""
    result_dtype = dtype or torch.get_default_dtype()
    plain = result_dtype.is_floating_point and not isinstance(start, Tensor) and not isinstance(end, Tensor)
    if not plain or options.keys() - {"device", "requires_grad"}:
        return torch.linspace(start, end, steps, dtype=dtype, **options)
    count: Any = steps
    positions = torch.arange(count, dtype=torch.float64, device=options.get("device"))
    return (positions * ((end - start) / torch.sym_max(steps - 1, 1)) + start).to(result_dtype)
