"""Operations under ``torch.autocast``: the casts that PyTorch makes before them, written into the graph.

Which operations it casts, and to what, PyTorch alone knows. So each is called once more on values without memory, under
the same settings, and the casts that come by are those that it makes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tvae.pipeline.engine.ir.op_facts import VIEWS
from tvae.pipeline.errors import UnsupportedOp

__all__ = ["Precision", "write_casts"]

_CAST = torch.ops.aten._to_copy.default


class Precision(NamedTuple):
    """Of a region under ``torch.autocast``."""

    device: str
    """The kind of device whose operations it casts."""
    dtype: torch.dtype | None
    """To what; None: the kind's own."""

    def __str__(self) -> str:
        return str(self.dtype or "lower").removeprefix("torch.")


def write_casts(graph: Any, precision: Precision) -> None:
    """Write the casts of a region in front of the operations of its graph. Raises UnsupportedOp for an operation that
    is made of others, of which it casts what lies between its operands and its result."""
    for node in list(graph.nodes):
        value = node.meta.get("val") if node.op == "call_function" else None
        if not isinstance(node.target, torch._ops.OpOverload) or not _has_fractions(value):
            continue
        call = _Call(node)
        if not call.is_cast_like(precision):
            raise _refused(node, precision)
        node.args, node.kwargs = call.args, call.kwargs
        with graph.inserting_before(node):
            for operand, dtype in call.casts.items():
                node.replace_input_with(operand, _cast(graph, node, operand, dtype))


def _has_fractions(value: Any) -> bool:
    return any(isinstance(leaf, Tensor) and leaf.is_floating_point() for leaf in tree_leaves(value))


def _types(value: Any) -> list[torch.dtype]:
    return [leaf.dtype for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def _cast(graph: Any, user: Any, operand: Any, dtype: torch.dtype) -> Any:
    node, value = graph.call_function(torch.ops.aten.to.dtype, (operand, dtype)), operand.meta["val"]
    node.meta = {key: user.meta[key] for key in ("nn_module_stack", "stack_trace") if key in user.meta}
    node.meta["val"] = value.new_empty(value.shape, dtype=dtype)
    return node


class _Call:
    """A node, to be called on values without memory, of the sizes that the model is captured at: with symbols, each
    call would add conditions on them."""

    def __init__(self, node: Any) -> None:
        self._target, self._wanted = node.target, _types(node.meta["val"])
        self.args, self.kwargs = node.args, node.kwargs
        self.casts: dict[Any, torch.dtype] = {}
        """The operands that are cast, and to what."""
        self._mode = FakeTensorMode()
        with self._mode:
            self._values = {each: _at_its_size(each.meta.get("val")) for each in node.all_input_nodes}

    def is_cast_like(self, precision: Precision) -> bool:
        """Find ``casts``. Is the node with these, and without ``torch.autocast``, made of the same operations?"""
        seen = _Watch({id(value): each for each, value in self._values.items() if isinstance(value, Tensor)})
        with torch.autocast(precision.device, dtype=precision.dtype, cache_enabled=False):
            self._run(seen, {})
        # an operation may itself cast what autocast leaves alone: those to one type alone are tried as well
        for chosen in (seen.casts, *({n: t for n, t in seen.casts.items() if t == kind} for kind in seen.kinds)):
            self.casts = chosen
            if self._is_made_of(seen):
                return True
        self._tell_type()
        return self._is_made_of(seen)

    def _is_made_of(self, seen: _Watch) -> bool:
        plain = _Watch({})
        try:
            types = self._run(plain, self.casts)
        except RuntimeError:  # operands of several types
            return False
        return types == self._wanted and seen.steps == plain.steps

    def _run(self, watch: _Watch, casts: dict[Any, torch.dtype]) -> list[torch.dtype]:
        with self._mode, torch.no_grad():
            values = self._values | {each: self._values[each].to(dtype) for each, dtype in casts.items()}
            args, kwargs = torch.fx.map_arg((self.args, self.kwargs), lambda n: values[n])
            with watch:
                return _types(self._target(*args, **kwargs))

    def _tell_type(self) -> None:
        """Some are not given other operands, but told the type of their result."""
        names = [each.name for each in self._target._schema.arguments]
        if "dtype" not in names or len({*self._wanted}) != 1:
            return
        at = names.index("dtype")
        if len(self.args) > at:
            self.args = (*self.args[:at], self._wanted[0], *self.args[at + 1 :])
        else:
            self.kwargs = {**self.kwargs, "dtype": self._wanted[0]}


def _at_its_size(value: Any) -> Any:
    """A value of a symbolic program at the size that it is captured at."""
    if isinstance(value, Tensor):
        numbers = [[_at_its_size(n) for n in each] for each in (value.shape, value.stride())]
        return torch.empty_strided(*numbers, dtype=value.dtype, device=value.device)
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return value.node.hint
    return value


class _Watch(TorchDispatchMode):
    """Notes casts of operands, and of what views show of them; and what is computed, in which types."""

    def __init__(self, origins: dict[int, Any]) -> None:
        super().__init__()
        self.casts: dict[Any, torch.dtype] = {}
        self.steps: list[Any] = []
        self._origins = origins
        self._kept: list[Any] = []  # so that no identity comes twice

    @property
    def kinds(self) -> set[torch.dtype]:
        """The types that operands are cast to."""
        return {*self.casts.values()}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        self._kept.append(result)
        origin = self._origins.get(id(args[0])) if args and isinstance(args[0], Tensor) else None
        if func is _CAST:
            if origin is not None:
                self.casts.setdefault(origin, result.dtype)
        elif func._schema.name.removeprefix("aten::") not in VIEWS:
            if _types(result):
                self.steps.append((str(func), _types((args, kwargs)), _types(result)))
        elif origin is not None and isinstance(result, Tensor):
            self._origins[id(result)] = origin
        return result


def _refused(node: Any, precision: Precision) -> UnsupportedOp:
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    module = str(stack[-1][0]).removeprefix("model").lstrip(".") if stack else ""
    why = f"in {precision} precision (torch.autocast) it casts values between its operands and its result"
    return UnsupportedOp(str(node.target), module, why, whole=False)
