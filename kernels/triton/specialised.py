"""Which kernel a launch wants: what Triton specialises a kernel for, told from its arguments."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

__all__ = ["same_launch", "specialisation"]

_FIXED: dict[int, tuple[Any, tuple[bool, ...]]] = {}
"""What ``_fixed`` tells, by the kernel's address. The kernel is kept here, so that no other comes to lie there: to hash
one takes longer than all else."""


def specialisation(kernel: Any, device: int, args: tuple[Any, ...], options: dict[str, Any]) -> Hashable:
    """A specialisation of a kernel."""
    seen: list[Hashable] = [id(kernel), device]
    for value, fixed in zip(args, _fixed(kernel), strict=False):
        kind = value.__class__
        if kind is int and 0 <= value < 1 << 31:  # most are, and a new size asks for hundreds
            seen.append("int" if fixed else (value == 1, value % 16 == 0))
        elif kind is Tensor:
            seen.append((value.dtype, fixed or value.data_ptr() % 16 == 0))
        else:
            seen.append(_form(value, fixed))
    return (*seen, *options.items())


def same_launch(kernel: Any, device: int, args: tuple[Any, ...], options: dict[str, Any]) -> Hashable:
    """A launch but for its grid and where its memory lies: more finely than ``specialisation`` tells it, and faster."""
    seen: list[Hashable] = [id(kernel), device, *options.items()]
    for value in args:
        kind = value.__class__
        if kind is int:
            seen.append(value)
        elif kind is Tensor:
            seen.append(value.dtype)
            seen.append(value.data_ptr() % 16 == 0)
        else:
            seen.append(_form(value, False))
    return tuple(seen)


def _fixed(kernel: Any) -> tuple[bool, ...]:
    """Of each parameter: is an integer there specialised for nothing but its width, a tensor for its type alone?"""
    found = _FIXED.get(id(kernel))
    if found is None:
        found = _FIXED[id(kernel)] = kernel, tuple([p.do_not_specialize for p in kernel.params])
    return found[1]


def _form(value: Any, fixed: bool) -> Hashable:
    """What a kernel is specialised for in another argument; ``fixed``: see ``_fixed``."""
    if isinstance(value, Tensor):  # a parameter of a model
        return value.dtype, fixed or value.data_ptr() % 16 == 0
    if isinstance(value, TensorDescriptor):
        return value.base.dtype, tuple(value.block_shape)
    if isinstance(value, bool) or not isinstance(value, int):
        return "float" if isinstance(value, float) else value
    width = value.bit_length() > 31, value == -(2**31), value >= 2**63  # the second is of 32 bits to new Tritons alone
    return *width, fixed or (value == 1, value % 16 == 0)
