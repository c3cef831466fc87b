"""Shapes of results that the exporter has found before: it finds each of them once.

The exporter follows shapes through every operation by symbolic arithmetic, some three milliseconds each, and a model
that goes over a clip frame by frame comes to the same operation on the same shapes hundreds of times. The
first answer is used again. Its conditions on sizes (guards) were recorded then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from tvae.pipeline.engine.capture.in_thread import instead
from tvae.pipeline.engine.capture.shortcuts.plain_shapes import plain_shape

__all__ = ["known_shapes"]

_SKIPPED = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.inplace_view}
_PLAIN = (str, torch.dtype, torch.device, torch.layout, torch.memory_format, type(None))


class _NoKey(Exception):
    """An argument that no key can stand for."""


@dataclass(frozen=True)
class _Result:
    """like: a tensor without values, of the result's shape and strides; None: it is the argument of this number."""

    like: Any
    argument: int = -1


@contextmanager
def known_shapes() -> Iterator[None]:
    """For what is exported inside this block. Does nothing with a release of PyTorch that is built otherwise."""
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

    with instead(mode_class, "_dispatch_impl", dispatch):  # in this thread: others may be compiling
        yield


def _is_function(func: Any) -> bool:
    """An operator whose results have shapes that follow from those of its arguments, and that changes none of them."""
    if not isinstance(func, torch._ops.OpOverload):
        return False
    return not func._schema.is_mutable and _SKIPPED.isdisjoint(func.tags)


def _key_of(value: Any, mode: Any, tensors: list[Any]) -> Any:
    """What the shape of a result can depend on in an argument. Tensors, which are the mode's, are appended in their
    order. Raises _NoKey."""
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
    """None where it is more than tensors."""
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
    """Another tensor of the same shape and strides."""
    from torch._subclasses.fake_tensor import FakeTensor, in_kernel_invocation_manager

    mode, device = tensor.fake_mode, tensor.fake_device
    with torch._C.DisableTorchFunction(), in_kernel_invocation_manager(mode):
        return FakeTensor(mode, tensor, device)
