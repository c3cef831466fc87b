"""Level 2: TorchScript, whose fuser makes one pass over memory out of a chain of operations, element by element.

It needs neither Triton nor a compiler on the user's machine, but generates code for NVIDIA cards only, and not for
reductions: statistics are the definition's own. Pictures are taken as [rows, columns], so that the fuser meets few
kinds of shapes. PyTorch deprecates TorchScript, and has none for Python 3.14.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tvae.kernels.layout import as_pixels
from tvae.kernels.operations.group_stats import group_stats
from tvae.kernels.registry import Unsupported

__all__ = ["IMPLEMENTATIONS", "missing"]

_SIZES = ((2, 3), (3, 4), (4, 5))
"""The fuser fixes the first two sizes it meets and takes any size from the third on. Small ones go first: before a
size is met a second time the formula runs unfused, which would need memory that no plan knows of."""

_failed: dict[Callable[..., Tensor], str] = {}
_met: set[tuple[Any, ...]] = set()


def missing() -> str | None:
    """Why TorchScript cannot run on this machine, or None."""
    if not hasattr(torch.jit, "script"):
        return "this PyTorch has no TorchScript"
    if sys.version_info >= (3, 14):
        return "TorchScript does not support Python 3.14"
    if not _makes_code_for("cuda"):
        return "TorchScript's fuser generates code for NVIDIA cards only"
    return None


def norm_act(x: Tensor, affine: Tensor, act: str | None) -> Tensor:
    """See ``operations.norm_act``; without the rounding before the activation."""
    rows, by_row, back = _as_rows(x)
    scale, shift = affine.to(_wide(x.dtype)).reshape((2, -1, 1) if by_row else (2, 1, -1)).unbind(0)
    return back(_fused(_scaled_silu if _activates(act) else _scaled, rows, scale, shift))


def add_stats(
    x: Tensor, residual: Tensor | None, bias: Tensor | None, out: Tensor | None, stats: bool
) -> tuple[Tensor, Tensor | None]:
    """See ``operations.add_stats``; of all three terms, rounded once."""
    if residual is None or bias is None or out is not None:
        raise Unsupported("brings something for x + residual + bias into new memory only")
    (rows, by_row, back), (rest, rest_by_row, _) = _as_rows(x), _as_rows(residual)
    if rest_by_row != by_row or residual.dtype != x.dtype:
        raise Unsupported("takes a residual that lies like x")
    term = bias.to(_wide(x.dtype))
    term = term.repeat(x.shape[0]).unsqueeze(1) if by_row else term.unsqueeze(0)
    y = back(_fused(_summed, rows, rest, term))
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
    """See ``operations.rms_norm_act``; the sizes of all pixels first, in a pass of their own."""
    if offset is not None:
        raise Unsupported("would add an offset in a pass of its own")
    if out is not None:
        raise Unsupported("would copy the result into given memory")
    rows, by_row, back = _as_rows(x)
    if by_row:
        raise Unsupported("takes one sample with its channels innermost")
    c, kind = x.shape[1], _wide(x.dtype)
    size = torch.linalg.vector_norm(rows, dim=1, keepdim=True, dtype=kind)
    if form == "normalize":
        inverse = c**0.5 / size.clamp_min_(eps)
    elif form == "rms":
        inverse = (size.square_() / c + eps).rsqrt_()
    else:
        raise Unsupported(f"has no form '{form}'")
    scale = rows.new_ones(1, c, dtype=kind) if weight is None else weight.to(kind).unsqueeze(0)
    shift = rows.new_zeros(1, c, dtype=kind) if bias is None else bias.to(kind).unsqueeze(0)
    return back(_fused(_sized_silu if _activates(act) else _sized, rows, inverse, scale, shift))


# the fuser takes ``type_as`` into its pass, but no ``to`` a type that it would have to ask a tensor for


def _scaled(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return (x.type_as(scale) * scale + shift).type_as(x)


def _scaled_silu(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return F.silu(x.type_as(scale) * scale + shift).type_as(x)


def _sized(x: Tensor, inverse: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return (x.type_as(scale) * inverse * scale + shift).type_as(x)


def _sized_silu(x: Tensor, inverse: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return F.silu(x.type_as(scale) * inverse * scale + shift).type_as(x)


def _summed(x: Tensor, residual: Tensor, term: Tensor) -> Tensor:
    return (x.type_as(term) + residual.type_as(term) + term).type_as(x)


def _as_rows(x: Tensor) -> tuple[Tensor, bool, Callable[[Tensor], Tensor]]:
    """x_nc* as [rows, columns], whether a channel is a row (else a column), and the way back. Raises Unsupported."""
    if not _makes_code_for(x.device.type):
        raise Unsupported("TorchScript's fuser generates code for NVIDIA cards only")
    if x.is_contiguous():
        return x.view(x.shape[0] * x.shape[1], -1), True, lambda y: y.view(x.shape)
    seen = as_pixels(x)
    if seen is None or seen.samples * seen.outer > 1:
        raise Unsupported("takes contiguous tensors, or one sample with its channels innermost")
    return x.flatten(2)[0].t(), False, lambda y: y.t().unflatten(1, x.shape[2:]).unsqueeze(0)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _activates(act: str | None) -> bool:
    if act not in (None, "silu"):
        raise Unsupported(f"has no activation '{act}'")
    return act == "silu"


@cache
def _makes_code_for(device_type: str) -> bool:
    known = {"cuda": "_jit_can_fuse_on_gpu", "cpu": "_jit_can_fuse_on_cpu"}
    asked = getattr(torch._C, known.get(device_type, ""), None)
    return asked is not None and bool(asked())


def _fused(formula: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """The formula in one pass. Raises Unsupported where the fuser fails, and then for every later call."""
    if formula in _failed:
        raise Unsupported(_failed[formula])
    kind = (formula, tensors[0].device, tensors[0].dtype, *(len(t) == 1 for t in tensors))
    try:
        run = _scripted(formula)
        if kind not in _met:
            for rows, columns in _SIZES:
                # strides, too, of a dimension of size 1, are taken for what every size has
                few = [t[:rows, :columns].clone(memory_format=torch.contiguous_format) for t in tensors]
                run(*few)
                run(*few)
            _met.add(kind)
        fused: Tensor = run(*tensors)
    except RuntimeError as error:
        reason = f"TorchScript fails: {str(error).strip().splitlines()[-1]}"
        if "out of memory" not in str(error):
            _failed[formula] = reason
        raise Unsupported(reason) from error
    return fused


@cache
def _scripted(formula: Callable[..., Tensor]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(formula)


IMPLEMENTATIONS = {fn.__name__: fn for fn in (norm_act, add_stats, rms_norm_act)}
"""Operation -> what this level has for it."""
