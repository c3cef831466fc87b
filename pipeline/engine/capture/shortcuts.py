"""Replace slow parts of the exporter by quicker ones that give the same result.

The exporter finds the shape of each result by symbolic arithmetic, some three to ten milliseconds an operation. Here
the shape of common operations follows from a short rule, an operation that was met before on the same shapes is looked
up, and notes that tvae does not read are not taken. A capture is two to three times as fast.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from tvae.pipeline.engine.capture.thread_patch import patched

__all__ = ["plain_shape", "shortcuts"]

_aten = torch.ops.aten


@contextmanager
def shortcuts() -> Iterator[None]:
    """Take all shortcuts in this thread. Those that do not fit the installed release of PyTorch are left out."""
    with ExitStack() as places:
        places.enter_context(_fewer_notes())
        places.enter_context(_known_shapes())
        places.enter_context(_plain_regions())
        yield


# -- notes -------------------------------------------------------------------------------------------------------------
@contextmanager
def _fewer_notes() -> Iterator[None]:
    """Take no notes on nodes that tvae's graphs do not use."""
    from torch.fx.experimental import proxy_tensor

    # this description of a value's memory takes arithmetic on symbols, and ``node.meta["val"]`` has it as well
    no_metadata = patched(proxy_tensor, "_extract_tensor_metadata", lambda *_args, **_kwargs: None)
    with no_metadata, _innermost_modules(proxy_tensor):
        yield


@contextmanager
def _innermost_modules(proxy_tensor: Any) -> Iterator[None]:
    """Note the innermost module of each node alone: the names of the modules around it take time later."""
    tracer_class: Any = getattr(proxy_tensor, "_ModuleStackTracer", None)
    if tracer_class is None:
        yield
        return

    def create_node(tracer: Any, *args: Any, **kwargs: Any) -> Any:
        tracer.record_stack_traces = False  # lines of source take longer than the node
        node = super(tracer_class, tracer).create_node(*args, **kwargs)
        around = node.meta.get("nn_module_stack") or tracer.module_stack
        path, kind = next(reversed(around.values()), ("", ""))
        name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"
        node.meta["nn_module_stack"] = {path: (path, name)} if path else {}
        return node

    with patched(tracer_class, "create_node", create_node):
        yield


# -- regions -----------------------------------------------------------------------------------------------------------
@contextmanager
def _plain_regions() -> Iterator[None]:
    """Remove the switches of gradients from a graph in which they are off throughout.

    The exporter would cut the graph at each ``torch.no_grad()`` and put it together again, a tenth of a first call.
    """
    try:
        from torch._export.passes import replace_set_grad_with_hop_pass as place
    except ImportError:
        yield
        return
    original: Any = getattr(place, "replace_set_grad_with_hop_pass", None)
    says: Any = getattr(place, "_is_set_grad_enabled_node", None)

    def replaced(module: Any, signature: Any) -> Any:
        nodes = list(module.graph.nodes)
        switches = [node for node in nodes if says(node)]
        inner = any(isinstance(part, torch.fx.GraphModule) for part in module.children())
        if inner or torch.is_grad_enabled() or any(node.args != (False,) or node.users for node in switches):
            return original(module, signature)
        for node in switches:
            module.graph.erase_node(node)
        if switches:
            module.recompile()
        return module, signature

    if says is None:
        yield
        return
    with patched(place, "replace_set_grad_with_hop_pass", replaced):
        yield


# -- results met before ------------------------------------------------------------------------------------------------
_SKIPPED = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.inplace_view}
_PLAIN = (str, torch.dtype, torch.device, torch.layout, torch.memory_format, type(None))


class _NoKey(Exception):
    """Raised for an argument that cannot be part of a key."""


@dataclass(frozen=True)
class _Result:
    """A result: a tensor without values of its shape and strides, or the number of the argument that it is."""

    like: Any
    argument: int = -1


@contextmanager
def _known_shapes() -> Iterator[None]:
    """Look up the results of operations that were met before on the same shapes.

    Their conditions on sizes (guards) were recorded the first time.
    """
    from torch._subclasses import fake_tensor

    mode_class: Any = fake_tensor.FakeTensorMode
    original = getattr(mode_class, "_dispatch_impl", None)
    if original is None:
        yield
        return
    known: dict[Any, _Result | tuple[_Result, ...]] = {}

    def dispatch(mode: Any, func: Any, types: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        try:
            tensors: list[Any] = []
            key = (func, id(mode), _key_of(args, mode, tensors), _key_of(tuple(kwargs.items()), mode, tensors))
            if not _is_function(func):
                raise _NoKey
        except _NoKey:
            return original(mode, func, types, args, kwargs)
        found = known.get(key)
        if found is not None:
            return _again(found, mode, tensors)
        result = plain_shape(func, args, kwargs)
        if result is None:
            result = original(mode, func, types, args, kwargs)
        described = _described(result, mode, tensors)
        if described is not None:
            known[key] = described
        return result

    with patched(mode_class, "_dispatch_impl", dispatch):  # in this thread: others may be compiling
        yield


def _is_function(func: Any) -> bool:
    """Return whether shapes of results follow from the arguments, and none of these is changed."""
    if not isinstance(func, torch._ops.OpOverload):
        return False
    return not func._schema.is_mutable and _SKIPPED.isdisjoint(func.tags)


def _key_of(value: Any, mode: Any, tensors: list[Any]) -> Any:
    """Return all that the shape of a result can depend on in an argument, and append its tensors to ``tensors``.

    Raises _NoKey.
    """
    kind = type(value)
    if kind in (int, bool):
        return kind, value
    if kind is float:
        return kind, value.hex()  # 0.0 equals -0.0
    if isinstance(value, _PLAIN):
        return value
    if kind in (tuple, list, torch.Size):
        return tuple(_key_of(v, mode, tensors) for v in value)
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return kind, value.node.expr
    if not mode.is_our_fake(value) or value.constant is not None or value.layout is not torch.strided:
        raise _NoKey
    tensors.append(value)
    sizes = (*value.shape, *value.stride(), value.storage_offset())
    flags = (value.dtype, value.fake_device, value.requires_grad, value.ndim, value.is_conj(), value.is_neg())
    return (*flags, *(s if type(s) is int else s.node._expr for s in sizes))  # the symbol before any replacement


def _described(result: Any, mode: Any, tensors: list[Any]) -> _Result | tuple[_Result, ...] | None:
    """Describe tensors; return None for anything else."""
    if type(result) in (tuple, list):
        parts = [_described(r, mode, tensors) for r in result]
        plain = tuple(p for p in parts if isinstance(p, _Result))
        return plain if len(plain) == len(parts) and type(result) is tuple else None
    if not mode.is_our_fake(result) or result.constant is not None or result.layout is not torch.strided:
        return None
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    if free_unbacked_symbols(result):  # a size that depends on values is another one each time
        return None
    for number, tensor in enumerate(tensors):
        if tensor is result:
            return _Result(None, number)
    return _Result(_copy_of(result))  # a factory returns its result itself only if there is no other reference to it


def _again(found: _Result | tuple[_Result, ...], mode: Any, tensors: list[Any]) -> Any:
    if isinstance(found, tuple):
        return tuple(_again(f, mode, tensors) for f in found)
    if found.like is None:
        return tensors[found.argument]
    return _copy_of(found.like)


def _copy_of(tensor: Any) -> Any:
    """Return another tensor of the same shape and strides."""
    from torch._subclasses.fake_tensor import FakeTensor, in_kernel_invocation_manager

    mode, device = tensor.fake_mode, tensor.fake_device
    with torch._C.DisableTorchFunction(), in_kernel_invocation_manager(mode):
        return FakeTensor(mode, tensor, device)


# -- shapes that follow from a rule ------------------------------------------------------------------------------------
def plain_shape(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the result of an operation as a fake tensor, or None where no short rule gives its shape.

    Results are dense in memory, as PyTorch makes them, their dimensions in the order of the argument's.
    """
    rule = _RULES.get(func)
    return None if rule is None else rule(*args, **kwargs)


def _alike(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    if _contiguous(x):
        return _dense(x, x.shape, dtype)
    return _made(x, lambda: torch.empty_like(x, dtype=dtype, device="meta"))


def _contiguous(x: Tensor) -> bool:
    """Return whether x is known to be contiguous. Asking PyTorch takes longer."""
    expected: Any = 1
    for size, stride in zip(reversed(x.shape), reversed(x.stride()), strict=True):
        if _expression(stride) != expected:
            return False
        expected = expected * _expression(size)
    return True


def _expression(size: Any) -> Any:
    return size if type(size) is int else size.node._expr


def _dense(x: Tensor, shape: Sequence[Any], dtype: torch.dtype | None = None, *, last: bool = False) -> Tensor:
    """Return a dense tensor on x's device; ``last`` puts its second dimension innermost.

    Strides are plain products of sizes; the exporter's own would be at least 1 each.
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


def _concatenated(parts: Sequence[Tensor], dim: int = 0) -> Tensor | None:
    """Join along a dimension of constant sizes."""
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
    """Pad by (before, after) of each dimension, the last dimension first."""
    if not _contiguous(x) or not all(type(n) is int for n in amounts):
        return None
    shape = [*x.shape]
    for n, (before, after) in enumerate(zip(amounts[::2], amounts[1::2], strict=True)):
        if before or after:
            shape[x.ndim - 1 - n] += before + after
    return _dense(x, shape)


def _vector_norm(
    x: Tensor,
    order: float = 2,
    dims: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor | None:
    if not dims or not keepdim or not x.is_floating_point():
        return None
    gone = {d % x.ndim for d in dims}
    return _dense(x, [1 if d in gone else n for d, n in enumerate(x.shape)], dtype)


def _arithmetic(x: Any, y: Any, alpha: Any = 1) -> Tensor | None:
    """Add, subtract, multiply or divide."""
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
    """Return whether ``small`` is known to be broadcast to the shape of ``large``."""
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
    """Convolve a contiguous tensor with constant window sizes. PyTorch reports what is wrong with others."""
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
    """Divide one dimension into several, or join several adjacent ones; the others stay as they are."""
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
    """Return the product as a sympy expression; equal numbers may have different ones."""
    found = math.prod(_expression(size) for size in sizes)
    return found if type(found) is int else found.expand()


def _averaged(
    x: Tensor, dims: Sequence[int] | None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor | None:
    if not dims or not x.is_floating_point() or not _contiguous(x):
        return None
    gone = {d % x.ndim for d in dims}
    kept = [1 if d in gone else n for d, n in enumerate(x.shape) if keepdim or d not in gone]
    return _dense(x, kept, dtype)


def _shuffled(x: Tensor, factor: int) -> Tensor | None:
    if x.ndim < 3 or not _contiguous(x) or type(x.shape[-3]) is not int or x.shape[-3] % factor**2:
        return None
    *samples, channels, height, width = x.shape
    return _dense(x, (*samples, channels // factor**2, height * factor, width * factor))


def _unshuffled(x: Tensor, factor: int) -> Tensor | None:
    """Move pixels into channels. That the factor divides the sizes becomes a guard of the graph."""
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
    """Return the result, the means and the deviations."""
    return _alike(x), _dense(x, (samples, groups)), _dense(x, (samples, groups))


_RULES: dict[Any, Callable[..., Any]] = {
    _aten.add.Tensor: _arithmetic,
    _aten.cat.default: _concatenated,
    _aten.clamp.default: _clamped,
    _aten.clamp_min.default: _clamped,
    _aten.clone.default: _cloned,
    _aten.constant_pad_nd.default: _padded,
    _aten.convolution.default: _convolved,
    _aten.div.Tensor: _arithmetic,
    _aten.linalg_vector_norm.default: _vector_norm,
    _aten.mean.dim: _averaged,
    _aten.mul.Tensor: _arithmetic,
    _aten.native_group_norm.default: _group_norm,
    _aten.pixel_shuffle.default: _shuffled,
    _aten.pixel_unshuffle.default: _unshuffled,
    _aten.silu.default: _alike,
    _aten.sub.Tensor: _arithmetic,
    _aten.view.default: _viewed,
    _aten._to_copy.default: _copied,
}
