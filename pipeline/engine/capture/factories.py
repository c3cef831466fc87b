"""Functions of PyTorch that would make a symbolic size a constant while a model is traced."""

from __future__ import annotations

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

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in (torch.randn, torch.rand):
            kwargs.pop("generator", None)
        if func is torch.linspace:
            return _spaced(*args, **kwargs)
        return func(*args, **kwargs)


def _spaced(start: Any, end: Any, steps: Any, *, dtype: torch.dtype | None = None, **options: Any) -> Tensor:
    """``torch.linspace`` for any number of steps, rounded once."""
    wanted = dtype or torch.get_default_dtype()
    plain = wanted.is_floating_point and not isinstance(start, Tensor) and not isinstance(end, Tensor)
    if not isinstance(steps, torch.SymInt) or not plain or options.keys() - {"device", "requires_grad"}:
        return torch.linspace(start, end, steps, dtype=dtype, **options)
    count: Any = steps
    at = torch.arange(count, dtype=torch.float64, device=options.get("device"))
    return (at * ((end - start) / torch.sym_max(steps - 1, 1)) + start).to(wanted)
