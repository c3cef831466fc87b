"""Level 3: ``torch.compile`` of the definitions, for pictures of any size at once.

Compiling takes seconds for each operation, type and memory layout that is met. It needs a C++ compiler for a CPU and
Triton for a GPU. What cannot be compiled is refused, once and for all; no run fails for it.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import warnings
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from tvae.kernels.native import IMPLEMENTATIONS as DEFINITIONS
from tvae.kernels.operations.add_stats import lie_together
from tvae.kernels.registry import Unsupported
from tvae.kernels.statistics import block_stats, blocks

__all__ = ["IMPLEMENTATIONS", "missing"]

_log = logging.getLogger("tvae")

_failed: dict[tuple[Callable[..., Any], str], str] = {}
"""Definition and type of device -> why it cannot be compiled."""
_compiled: dict[tuple[Any, ...], Callable[..., Any]] = {}
"""By definition and kind of arguments."""


def missing() -> str | None:
    """Why nothing can be compiled on this machine."""
    return _lacking("cpu") and (_lacking("cuda") if torch.cuda.is_available() else _lacking("cpu"))


def group_stats(x: Tensor) -> Tensor:
    """See ``operations.group_stats``."""
    parts = [_run(block_stats, part) for part in blocks(x)]
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


def merge_stats(parts: Tensor) -> Tensor:
    """See ``operations.merge_stats``."""
    return _run(DEFINITIONS["merge_stats"], parts)


def finish_stats(
    parts: Tensor, groups: int, eps: float, weight: Tensor | None, bias: Tensor | None, offset: Tensor | None
) -> Tensor:
    """See ``operations.finish_stats``."""
    return _run(DEFINITIONS["finish_stats"], parts, groups, eps, weight, bias, offset)


def norm_act(x: Tensor, affine: Tensor, act: str | None) -> Tensor:
    """See ``operations.norm_act``; without the rounding before the activation."""
    return _run(DEFINITIONS["norm_act"], x, affine, act)


def add_stats(
    x: Tensor, residual: Tensor | None, bias: Tensor | None, out: Tensor | None, stats: bool
) -> tuple[Tensor, Tensor | None]:
    """See ``operations.add_stats``; rounded once."""
    if stats and residual is not None and out is not None and lie_together(out, residual):
        parts = group_stats(_run(_sum, x, residual, bias, None))
        return _run(_sum, x, residual, bias, out), parts
    if residual is None and bias is None:
        y = DEFINITIONS["add_stats"](x, None, None, out, False)[0]
    else:
        y = _run(_sum, x, residual, bias, out)
    return y, group_stats(y) if stats else None


def rms_norm_act(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    form: str,
    act: str | None,
    offset: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """See ``operations.rms_norm_act``; rounded once."""
    return _run(DEFINITIONS["rms_norm_act"], x, weight, bias, eps, form, act, offset, out)


def _sum(x: Tensor, residual: Tensor | None, bias: Tensor | None, out: Tensor | None) -> Tensor:
    """The sum of ``operations.add_stats``; the compiler refuses ``out=``, but writes this copy in the same pass."""
    y = DEFINITIONS["add_stats"](x, residual, bias, None, False)[0]
    return y if out is None else out.copy_(y)


def _run(definition: Callable[..., Any], *args: Any) -> Any:
    """The definition, compiled. Raises Unsupported where that does not work."""
    device = args[0].device.type
    lacking = _lacking(device) or _failed.get((definition, device))
    if lacking:
        raise Unsupported(lacking)
    kind = (definition, *((arg is args[0], _kind_of(arg)) for arg in args))
    try:
        if kind in _compiled:
            return _compiled[kind](*args)
        _compiled[kind] = _alone(definition, len(_compiled))
        with warnings.catch_warnings():  # the compiler uses parts of PyTorch that PyTorch itself deprecates
            warnings.simplefilter("ignore")
            return _compiled[kind](*args)
    except (torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:  # the compiler has many of its own; whatever it is, the level below can do the work
        _log.debug("%s is not compiled", definition.__name__, exc_info=True)
        reason = "torch.compile fails: " + " ".join(str(error).split("\n")[:2])
        if type(error).__name__ != "FailOnRecompileLimitHit":  # what was compiled before still works after it
            _failed[definition, device] = reason
        raise Unsupported(reason) from error


def _alone(definition: Callable[..., Any], number: int) -> Callable[..., Any]:
    """A compiled copy under a name of its own: PyTorch keeps few variants of a function, and looks through all."""
    code = definition.__code__.replace(co_name=f"{definition.__name__}_{number}")
    copy = FunctionType(code, definition.__globals__, code.co_name, definition.__defaults__)
    compiled: Callable[..., Any] = torch.compile(copy, fullgraph=True, dynamic=True)
    return compiled


def _kind_of(arg: Any) -> Any:
    """All that would make another variant but the size."""
    if not isinstance(arg, Tensor):
        return arg
    return arg.dtype, arg.device, arg.ndim, len(arg) == 1, arg.is_contiguous(), arg.ndim > 1 and arg.stride(1) == 1


@cache
def _lacking(device_type: str) -> str | None:
    """What PyTorch's own compiler needs for a kind of device and does not find."""
    if device_type == "cuda":
        return None if find_spec("triton") else "torch.compile needs triton, which is not installed"
    if device_type != "cpu":
        return f"not tried on devices of type {device_type}"
    compiler = os.environ.get("CXX") or {"win32": "cl", "darwin": "clang++"}.get(sys.platform, "g++")
    return None if shutil.which(compiler) else f"torch.compile needs a C++ compiler, and there is no {compiler}"


IMPLEMENTATIONS = {
    fn.__name__: fn for fn in (group_stats, merge_stats, finish_stats, norm_act, add_stats, rms_norm_act)
}
"""Operation -> what this level has for it."""
