"""Shortcut: the shapes of results that are obvious, such as those of elementwise operations.

The exporter finds them by going through each operation's arithmetic step by step, on symbols, and notes every
comparison on the way in the graph: some ten milliseconds for a norm or a clamp. Results lie in memory as PyTorch's do:
dense, their dimensions in the order of the argument's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

__all__ = ["plain_shape"]

_aten = torch.ops.aten


def plain_shape(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The result as a fake tensor; None where its shape is not obvious."""
    rule = _RULES.get(func)
    return None if rule is None else rule(*args, **kwargs)


def _alike(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Like x, of this type."""
    if _contiguous(x):
        return _dense(x, x.shape, dtype)
    return _made(x, lambda: torch.empty_like(x, dtype=dtype, device="meta"))


def _contiguous(x: Tensor) -> bool:
    """Is it certainly contiguous? Asking PyTorch takes longer."""
    expected: Any = 1
    for size, stride in zip(reversed(x.shape), reversed(x.stride()), strict=True):
        if _expression(stride) != expected:
            return False
        expected = expected * _expression(size)
    return True


def _expression(size: Any) -> Any:
    return size if type(size) is int else size.node._expr


def _dense(x: Tensor, shape: Sequence[Any], dtype: torch.dtype | None = None, *, last: bool = False) -> Tensor:
    """Of this shape, on x's device. Its strides are products of sizes; the exporter's would be at least 1 each.

    last: with the second of its dimensions innermost.
    """
    strides: list[Any] = [1] * len(shape)
    order = [0, *range(2, len(shape)), 1] if last else [*range(len(shape))]
    for outer, inner in reversed([*pairwise(order)]):
        strides[outer] = strides[inner] * shape[inner]
    return _made(x, lambda: torch.empty_strided(tuple(shape), strides, dtype=dtype or x.dtype, device="meta"))


def _made(x: Any, make: Callable[[], Tensor]) -> Tensor:
    from torch._subclasses.fake_tensor import FakeTensor, in_kernel_invocation_manager

    with torch._C.DisableTorchFunction(), in_kernel_invocation_manager(x.fake_mode):
        made: Tensor = FakeTensor(x.fake_mode, make(), x.fake_device)
    return made


def _clamped(x: Tensor, least: float | None = None, most: float | None = None) -> Tensor | None:
    return _alike(x) if x.is_floating_point() else None


def _copied(x: Tensor, *, dtype: torch.dtype | None = None, **others: Any) -> Tensor | None:
    return _alike(x, dtype) if all(value is None or value is False for value in others.values()) else None


def _cloned(x: Tensor, *, memory_format: torch.memory_format | None = None) -> Tensor | None:
    if memory_format in (None, torch.preserve_format):
        return _alike(x)
    return _dense(x, x.shape) if memory_format is torch.contiguous_format else None


def _joined(parts: Sequence[Tensor], dim: int = 0) -> Tensor | None:
    """Side by side along a dimension whose sizes are no symbols."""
    first = parts[0]
    dim %= first.ndim
    sizes = [t.shape[dim] if t.ndim == first.ndim else None for t in parts]
    if not all(type(n) is int for n in sizes) or any(t.dtype != first.dtype for t in parts):
        return None
    others = [d for d in range(first.ndim) if d != dim]
    if not all(_contiguous(t) and all(_equal(t.shape[d], first.shape[d]) for d in others) for t in parts):
        return None
    return _dense(first, [sum(sizes) if d == dim else n for d, n in enumerate(first.shape)])


def _padded(x: Tensor, amounts: Sequence[Any], value: Any = 0) -> Tensor | None:
    """With a border; amounts: before and after, of the last dimension first."""
    if not _contiguous(x) or not all(type(n) is int for n in amounts):
        return None
    shape = [*x.shape]
    for n, (before, after) in enumerate(zip(amounts[::2], amounts[1::2], strict=True)):
        if before or after:
            shape[x.ndim - 1 - n] += before + after
    return _dense(x, shape)


def _normed(
    x: Tensor,
    order: float = 2,
    dims: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor | None:
    """Of a vector along these dimensions."""
    if not dims or not keepdim or not x.is_floating_point():
        return None
    gone = {d % x.ndim for d in dims}
    return _dense(x, [1 if d in gone else n for d, n in enumerate(x.shape)], dtype)


def _combined(x: Any, y: Any, alpha: Any = 1) -> Tensor | None:
    """A sum, a difference, a product or a quotient."""
    if not isinstance(x, Tensor) or not x.is_floating_point() or isinstance(alpha, torch.SymInt):
        return None
    if not isinstance(y, Tensor):
        return _alike(x) if isinstance(y, (int, float)) else None
    if y.dtype != x.dtype or y.device != x.device:
        return None
    if _spreads(y, x):
        return _alike(x)
    return _alike(y) if _spreads(x, y) else None


def _spreads(small: Tensor, large: Tensor) -> bool:
    """Is ``small`` certainly broadcast to the shape of ``large``?"""
    if small.ndim > large.ndim:
        return False
    sizes = zip(reversed(small.shape), reversed(large.shape), strict=False)
    return all((type(n) is int and n == 1) or _equal(n, m) for n, m in sizes)


def _equal(n: Any, m: Any) -> bool:
    if type(n) is int or type(m) is int:
        return type(n) is type(m) and n == m
    return bool(n.node._expr == m.node._expr)


def _convolved(
    x: Tensor,
    weight: Tensor,
    _bias: Tensor | None,
    stride: Sequence[Any],
    padding: Sequence[Any],
    dilation: Sequence[Any],
    transposed: bool,
    _output_padding: Sequence[Any],
    groups: int,
) -> Tensor | None:
    """Windows that are no symbols, over what is contiguous. PyTorch says what is wrong with others."""
    if x.ndim != weight.ndim or not _equal(x.shape[1], weight.shape[1] * groups):
        return None
    constants = (*weight.shape, *stride, *padding, *dilation)
    if transposed or not all(type(n) is int for n in constants) or x.dtype != weight.dtype:
        return None
    if not _contiguous(x) or not _contiguous(weight):
        return None
    windows = zip(x.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True)
    sizes = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in windows]
    return _dense(x, (x.shape[0], weight.shape[0], *sizes))


def _viewed(x: Tensor, shape: Sequence[Any]) -> Tensor | None:
    """One dimension divided into several, or several that lie together joined to one; the others stay as they are."""
    most = min(x.ndim, len(shape))
    before = next((d for d in range(most) if not _equal(x.shape[d], shape[d])), most)
    after = next((d for d in range(most - before) if not _equal(x.shape[-1 - d], shape[-1 - d])), most - before)
    old, new = x.shape[before : x.ndim - after], shape[before : len(shape) - after]
    if 1 not in (len(old), len(new)) or any(type(n) is int and n < 2 for n in (*old, *new)):
        return None
    strides = x.stride()[before : x.ndim - after]
    if any(_product([a]) != _product([b, n]) for a, b, n in zip(strides, strides[1:], old[1:], strict=False)):
        return None
    if _product(old) != _product(new) and math.prod(old) != math.prod(
        new
    ):  # asked of symbols, a condition of the graph
        return None
    made = [strides[-1]]
    for size in reversed(new[1:]):
        made.insert(0, made[0] * size)
    laid_out = (*x.stride()[:before], *made, *x.stride()[x.ndim - after :])
    return _made(x, lambda: torch.empty_strided(tuple(shape), laid_out, dtype=x.dtype, device="meta"))


def _product(sizes: Sequence[Any]) -> Any:
    """As an expression: an equal number may have another."""
    found = math.prod(_expression(size) for size in sizes)
    return found if type(found) is int else found.expand()


def _averaged(
    x: Tensor, dims: Sequence[int] | None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor | None:
    """Along these dimensions."""
    if not dims or not x.is_floating_point() or not _contiguous(x):
        return None
    gone = {d % x.ndim for d in dims}
    kept = [1 if d in gone else n for d, n in enumerate(x.shape) if keepdim or d not in gone]
    return _dense(x, kept, dtype)


def _shuffled(x: Tensor, factor: int) -> Tensor | None:
    """Channels become pixels."""
    if x.ndim < 3 or not _contiguous(x) or type(x.shape[-3]) is not int or x.shape[-3] % factor**2:
        return None
    *samples, channels, height, width = x.shape
    return _dense(x, (*samples, channels // factor**2, height * factor, width * factor))


def _unshuffled(x: Tensor, factor: int) -> Tensor | None:
    """Pixels become channels. Whether the factor divides the sizes becomes a condition of the graph."""
    *samples, channels, height, width = x.shape
    last = x.ndim == 4 and type(channels) is int and channels > 1 and _contiguous(x.permute(0, 2, 3, 1))
    if x.ndim < 3 or not (last or _contiguous(x)) or height % factor != 0 or width % factor != 0:
        return None
    return _dense(x, (*samples, channels * factor**2, height // factor, width // factor), last=last)


def _group_norm(
    x: Tensor,
    _weight: Tensor | None,
    _bias: Tensor | None,
    samples: Any,
    _channels: Any,
    _pixels: Any,
    groups: int,
    _eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Result, means and deviations."""
    return _alike(x), _dense(x, (samples, groups)), _dense(x, (samples, groups))


_RULES: dict[Any, Callable[..., Any]] = {
    _aten.add.Tensor: _combined,
    _aten.cat.default: _joined,
    _aten.clamp.default: _clamped,
    _aten.clamp_min.default: _clamped,
    _aten.clone.default: _cloned,
    _aten.constant_pad_nd.default: _padded,
    _aten.convolution.default: _convolved,
    _aten.div.Tensor: _combined,
    _aten.linalg_vector_norm.default: _normed,
    _aten.mean.dim: _averaged,
    _aten.mul.Tensor: _combined,
    _aten.native_group_norm.default: _group_norm,
    _aten.pixel_shuffle.default: _shuffled,
    _aten.pixel_unshuffle.default: _unshuffled,
    _aten.silu.default: _alike,
    _aten.sub.Tensor: _combined,
    _aten.view.default: _viewed,
    _aten._to_copy.default: _copied,
}
