"""Small tensors that a model makes of sizes and reads as numbers again: what it reads are sizes, no constants.

Beside each such tensor stands what it holds: a number, or a list of numbers. What PyTorch computes of the tensor is
computed of those as well.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["TensorsOfSizes", "rounded_to_zero"]

Numbers = Any
"""A number (``int``, ``float``, or a symbolic one), or a list of them."""

_EXACT = 1 << 22
"""Up to here a float32 tells the root of a size from those of its neighbours."""


class TensorsOfSizes:
    """The tensors of one capture that are made of sizes, by their identity."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[Tensor, Numbers]] = {}
        self._rounded: set[int] = set()
        """Those of which the tensor holds another number, rounded in its type."""

    def call(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a function of PyTorch gives, as far as it is told here."""
        name = getattr(func, "__name__", "")
        if _writes(name, kwargs):
            self._held.clear()  # any of them may be written to
            return func(*args, **kwargs)
        if name in ("tensor", "as_tensor", "scalar_tensor", "new_tensor"):
            return self._made(func, name, args, kwargs)
        if not self._held:
            return func(*args, **kwargs)
        if name in _READ and self._holds(args[0]) and id(args[0]) not in self._rounded:
            return _READ[name](self._numbers(args[0]))
        if name not in _COMPUTED:
            inside = self._as_sizes if name in _TAKES_SIZES else lambda each: self._as_sizes(each, only_lists=True)
            return func(*inside(args), **inside(kwargs))
        result = func(*args, **kwargs)
        if any(self._holds(leaf) for leaf in _leaves(args)):
            self._note(result, name, args, kwargs)
        return result

    def _made(self, func: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Some make a size a constant on their way; ``torch.tensor`` does not."""
        like, data = (args[0], args[1:2]) if name == "new_tensor" else (None, args[:1])
        numbers = self._as_sizes(
            list(data[0]) if data and isinstance(data[0], list | tuple) else data[0] if data else 0
        )
        if not data or not _has_sizes(numbers):
            return func(*args, **kwargs)
        more = dict(zip(("dtype", "device"), args[2 if like is not None else 1 :], strict=False)) | kwargs
        if like is not None:
            more = {"dtype": like.dtype, "device": like.device} | {k: v for k, v in more.items() if v is not None}
        elif name == "scalar_tensor":
            more = {"dtype": torch.get_default_dtype()} | more
        made = torch.tensor(numbers, **more)
        self._hold(made, numbers)
        return made

    def _holds(self, value: Any) -> bool:
        return id(value) in self._held

    def _hold(self, tensor: Tensor, numbers: Numbers) -> None:
        kind = float if tensor.is_floating_point() else int
        self._held[id(tensor)] = tensor, _each(lambda n: _as(kind, n), numbers)  # kept, so that no identity comes twice

    def _numbers(self, value: Any) -> Numbers:
        return self._held[id(value)][1] if self._holds(value) else value

    def _as_sizes(self, value: Any, *, only_lists: bool = False) -> Any:
        """Arguments with whole numbers in place of the tensors that hold one. only_lists: in lists of sizes alone."""
        if isinstance(value, dict):
            return {key: self._as_sizes([each], only_lists=only_lists)[0] for key, each in value.items()}
        if isinstance(value, list | tuple):
            inside = [self._number_of(each, only_lists) for each in value]
            return inside if isinstance(value, list) else tuple(inside)
        return value

    def _number_of(self, value: Any, only_lists: bool) -> Any:
        if isinstance(value, Tensor) and not only_lists and self._holds(value):
            return self._numbers(value) if not value.ndim and not value.is_floating_point() else value
        return self._as_sizes(value) if isinstance(value, list | tuple) else value

    def _note(self, result: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """What the result of a computation holds, where that can be told: not where a number that the tensor's type
        has rounded is computed with, for what stands here is not, and may be a whole number where that is none."""
        operands = _leaves(args)
        rounded = any(id(leaf) in self._rounded for leaf in operands)
        if not all(map(_is_short, operands)) or (rounded and name not in _OF_ROUNDED):
            return
        try:
            held = _COMPUTED[name](*[self._told(each) for each in args], **kwargs)
        except (TypeError, ValueError, IndexError, KeyError, AttributeError):
            return
        results = result if isinstance(result, list | tuple) else [result]
        for tensor, numbers in zip(results, held if isinstance(result, list | tuple) else [held], strict=False):
            shape = (len(numbers),) if isinstance(numbers, list) else ()
            if isinstance(tensor, Tensor) and tuple(tensor.shape) == shape:
                self._hold(tensor, numbers)
                if tensor.is_floating_point() and (name in _ROUND or (rounded and name not in _WHOLE)):
                    self._rounded.add(id(tensor))

    def _told(self, value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [self._told(each) for each in value]
        if isinstance(value, Tensor) and not self._holds(value):
            raise TypeError("a tensor of other values")
        return self._numbers(value)


def rounded_to_zero(number: Any) -> Any:
    """A symbolic number as ``int`` would give it; a condition of the graph says on which side of zero it is."""
    if not isinstance(number, torch.SymFloat):
        return number if isinstance(number, torch.SymInt) else int(number)
    return math.floor(number) if number >= 0 else math.ceil(number)


def _as(kind: type, number: Any) -> Any:
    if kind is int:
        return rounded_to_zero(number)
    return torch.sym_float(number) if isinstance(number, torch.SymInt) else number + 0.0


def _each(of: Callable[..., Any], *numbers: Numbers) -> Numbers:
    """A function of numbers, for each of a list; a number beside a list is the same for all."""
    lists = [each for each in numbers if isinstance(each, list)]
    if not lists:
        return of(*numbers)
    columns = [each if isinstance(each, list) else [each] * len(lists[0]) for each in numbers]
    return [of(*row) for row in zip(*columns, strict=True)]


def _for_each(of: Callable[..., Any]) -> Callable[..., Numbers]:
    return lambda *numbers: _each(of, *numbers)


def _over_all(of: Callable[[list[Any]], Any]) -> Callable[..., Numbers]:
    def over(numbers: Numbers) -> Any:
        return of(numbers) if isinstance(numbers, list) else numbers

    return over


def _root(number: Any) -> Any:
    if number > _EXACT:
        raise ValueError("a root that is rounded in float32")
    return torch.sym_sqrt(number)


def _divided(x: Numbers, y: Numbers, *, rounding_mode: str | None = None) -> Numbers:
    if rounding_mode == "trunc":
        raise ValueError("rounded to zero")
    return _each(operator.floordiv if rounding_mode else operator.truediv, x, y)


def _most(of: Callable[[Any, Any], Any]) -> Callable[..., Numbers]:
    def most(x: Numbers, *other: Numbers) -> Numbers:
        if other:
            return _each(of, x, *other)
        found = x[0] if isinstance(x, list) else x
        for each in x[1:] if isinstance(x, list) else []:
            found = of(found, each)
        return found

    return most


def _listed(numbers: Sequence[Numbers], *dim: int) -> list[Any]:
    return [one for each in numbers for one in (each if isinstance(each, list) else [each])]


_READ: dict[str, Callable[[Numbers], Any]] = {
    **dict.fromkeys(("item", "tolist"), lambda numbers: numbers),
    **{"__int__": int, "__index__": int, "__float__": float},
}
"""A model that asks for a number of Python's own gets it, and is a model of that size alone."""
_TAKES_SIZES = {
    *("arange", "zeros", "ones", "empty", "full", "rand", "randn", "new_zeros", "new_ones", "new_empty", "new_full"),
    *("view", "reshape", "expand", "repeat", "tile", "narrow", "unflatten", "repeat_interleave"),
}
"""They take a size as an argument of its own, besides in lists."""
_COMPUTED: dict[str, Callable[..., Numbers]] = {
    **dict.fromkeys(("prod",), _over_all(math.prod)),
    **dict.fromkeys(("sum",), _over_all(sum)),
    **dict.fromkeys(("__getitem__",), operator.getitem),
    **dict.fromkeys(("add", "__add__", "__radd__"), _for_each(operator.add)),
    **dict.fromkeys(("sub", "__sub__"), _for_each(operator.sub)),
    **dict.fromkeys(("__rsub__",), _for_each(lambda x, y: y - x)),
    **dict.fromkeys(("mul", "__mul__", "__rmul__"), _for_each(operator.mul)),
    **dict.fromkeys(("div", "true_divide", "__truediv__"), _divided),
    **dict.fromkeys(("__rdiv__", "__rtruediv__"), _for_each(lambda x, y: y / x)),
    **dict.fromkeys(("floor_divide", "__floordiv__"), _for_each(operator.floordiv)),
    **dict.fromkeys(("remainder", "__mod__"), _for_each(operator.mod)),
    **dict.fromkeys(("neg", "__neg__"), _for_each(operator.neg)),
    **dict.fromkeys(("sqrt",), _for_each(_root)),
    **dict.fromkeys(("ceil",), _for_each(math.ceil)),
    **dict.fromkeys(("floor",), _for_each(math.floor)),
    **dict.fromkeys(("max", "maximum"), _most(torch.sym_max)),
    **dict.fromkeys(("min", "minimum"), _most(torch.sym_min)),
    **dict.fromkeys(("unbind",), lambda x, *_dim: list(x)),
    **dict.fromkeys(("stack", "cat"), _listed),
    **dict.fromkeys(("long", "int", "float", "double", "to", "type", "clone", "detach", "cpu"), lambda x, *_: x),
}
"""By the name of a function, what it gives of what its operands hold."""


_ROUND = {"div", "true_divide", "__truediv__", "__rdiv__", "__rtruediv__", "sqrt"}
"""Their results are rounded, by so little that a quotient or root of sizes stays on its side of every whole number."""
_WHOLE = {"ceil", "floor"}
_OF_ROUNDED = {
    *_WHOLE,
    *("__getitem__", "unbind", "stack", "cat", "clone", "detach", "cpu"),
    *("long", "int", "float", "double", "to", "type"),
}


def _is_short(value: Any) -> bool:
    """Is it no number with a fraction that a type of 32 bits, or a product of it and a size, would round?"""
    return not isinstance(value, float) or (abs(value) < 1 << 12 and (value * 16).is_integer())


def _leaves(args: Any) -> list[Any]:
    return [leaf for arg in args for leaf in (_leaves(arg) if isinstance(arg, list | tuple) else [arg])]


def _writes(name: str, kwargs: dict[str, Any]) -> bool:
    return (
        name in ("__setitem__", "__set__")
        or "out" in kwargs
        or (name.endswith("_") and not name.endswith("__"))
        or (name.startswith("__i") and name not in ("__index__", "__int__", "__invert__"))
    )


def _has_sizes(data: Any) -> bool:
    """A size, or a list of numbers with sizes among them?"""
    if isinstance(data, torch.SymInt | torch.SymFloat):
        return True
    kinds = int | float | torch.SymInt | torch.SymFloat
    numbers = isinstance(data, list) and all(isinstance(n, kinds) for n in data)
    return numbers and any(isinstance(n, torch.SymInt | torch.SymFloat) for n in data)
