"""Write the casts of ``torch.autocast`` into a graph.

The exporter puts a region of a model under other settings (``torch.autocast``, gradients on or off) into a graph of its
own. These graphs are inlined, with the casts that PyTorch makes before their operations. Which operations it casts, and
to what, PyTorch alone knows: each operation is called once more on fake tensors under the same settings, and the casts
are recorded.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tvae.pipeline.engine.capture.thread_patch import patched
from tvae.pipeline.engine.ir.op_facts import VIEWS
from tvae.pipeline.errors import UnsupportedOp

__all__ = ["explicit_autocast", "inline_regions", "interpolation_dtype"]

_REGIONS = {"wrap_with_autocast": 4, "wrap_with_set_grad_enabled": 1}
"""The exporter's name of such a region, and how many settings it has before its graph."""


def inline_regions(owner: Any, device: torch.device, precision: Precision | None = None) -> None:
    """Inline the regions of a graph module, inner ones first.

    ``precision`` is the autocast that the graph itself is under. Raises UnsupportedOp where the casts of a region are
    unknown: those of a composite operation, or of any operation while the weights are on the meta device.
    """
    graph = owner.graph
    if precision is not None:
        _write_casts(graph, precision)
    for node in list(graph.nodes):
        settings = _REGIONS.get(getattr(node.target, "__name__", "")) if node.op == "call_function" else None
        if settings is None:
            continue
        region, operands = node.args[settings], node.args[settings + 1 :]
        inner = getattr(owner, region.target)
        inline_regions(inner, device, precision if settings == 1 else _precision(node, inner, device, precision))
        _replace(graph, node, inner.graph, operands)
        graph.erase_node(node)
        if not region.users:
            graph.erase_node(region)


def _precision(node: Any, inner: Any, device: torch.device, around: Precision | None) -> Precision | None:
    """Return the autocast of a region; that around it where the region's is for another kind of device."""
    inside = Precision(node.args[0], node.args[1])
    if device.type == "meta" and node.args[2]:
        why = f"it computes a part in {inside} precision (torch.autocast), whose casts depend on where the weights are"
        raise UnsupportedOp("torch.autocast", _module_in(inner), why, whole=False)
    if device.type != inside.device:
        return around
    return inside if node.args[2] else None


def _replace(graph: Any, node: Any, inner: Any, operands: Any) -> None:
    """Replace a region by copies of its nodes."""
    arguments, copies = iter(operands), dict[Any, Any]()
    results: Any = ()
    with graph.inserting_before(node):
        for each in inner.nodes:
            if each.op == "placeholder":
                copies[each] = next(arguments)
            elif each.op == "output":
                results = torch.fx.map_arg(each.args[0], lambda n: copies[n])
            else:
                copies[each] = graph.node_copy(each, lambda n: copies[n])
    for user in list(node.users):
        if user.target is operator.getitem:
            user.replace_all_uses_with(results[user.args[1]])
            graph.erase_node(user)
    if node.users:
        node.replace_all_uses_with(results)


def _module_in(inner: Any) -> str:
    """Return the first module that computes in it."""
    stacks = (list((n.meta.get("nn_module_stack") or {}).values()) for n in inner.graph.nodes)
    paths = [str(stack[-1][0]) for stack in stacks if stack]
    return paths[0].removeprefix("model").lstrip(".") if paths else ""


# -- casts of one operation --------------------------------------------------------------------------------------------
_CAST = torch.ops.aten._to_copy.default


class Precision(NamedTuple):
    """The kind of device whose operations ``torch.autocast`` casts, and the type it casts to (None: the default)."""

    device: str
    dtype: torch.dtype | None

    def __str__(self) -> str:
        return str(self.dtype or "lower").removeprefix("torch.")


def _write_casts(graph: Any, precision: Precision) -> None:
    """Insert the casts before the operations of a graph.

    Raises UnsupportedOp for a composite operation that has casts inside.
    """
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
    """A node that is called on fake tensors of constant sizes; with symbols each call would add guards."""

    def __init__(self, node: Any) -> None:
        self._target, self._wanted = node.target, _types(node.meta["val"])
        self.args, self.kwargs = node.args, node.kwargs
        self.casts: dict[Any, torch.dtype] = {}
        self._mode = FakeTensorMode()
        with self._mode:
            self._values = {each: _at_its_size(each.meta.get("val")) for each in node.all_input_nodes}

    def is_cast_like(self, precision: Precision) -> bool:
        """Find ``casts``; return whether the node with them computes the same without ``torch.autocast``."""
        seen = _Watch({id(value): each for each, value in self._values.items() if isinstance(value, Tensor)})
        with torch.autocast(precision.device, dtype=precision.dtype, cache_enabled=False):
            self._run(seen, {})
        # an operation may itself cast what autocast leaves alone, so the casts to each single type are tried as well
        for chosen in (seen.casts, *({n: t for n, t in seen.casts.items() if t == kind} for kind in seen.kinds)):
            self.casts = chosen
            if self._is_made_of(seen):
                return True
        self._set_dtype()
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

    def _set_dtype(self) -> None:
        """Pass the type of the result to an operation that has an argument for it."""
        names = [each.name for each in self._target._schema.arguments]
        if "dtype" not in names or len({*self._wanted}) != 1:
            return
        at = names.index("dtype")
        if len(self.args) > at:
            self.args = (*self.args[:at], self._wanted[0], *self.args[at + 1 :])
        else:
            self.kwargs = {**self.kwargs, "dtype": self._wanted[0]}


def _at_its_size(value: Any) -> Any:
    """Return a value of a symbolic program at the size that it is captured at."""
    if isinstance(value, Tensor):
        numbers = [[_at_its_size(n) for n in each] for each in (value.shape, value.stride())]
        return torch.empty_strided(*numbers, dtype=value.dtype, device=value.device)
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return value.node.hint
    return value


class _Watch(TorchDispatchMode):
    """Records casts of operands and of views of them, and what is computed in which types."""

    def __init__(self, origins: dict[int, Any]) -> None:
        super().__init__()
        self.casts: dict[Any, torch.dtype] = {}
        self.steps: list[Any] = []
        self._origins = origins
        self._kept: list[Any] = []  # so that no identity comes twice

    @property
    def kinds(self) -> set[torch.dtype]:
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


# -- autocast outside of regions ---------------------------------------------------------------------------------------
@contextmanager
def explicit_autocast(device: torch.device) -> Iterator[Callable[[], None]]:
    """Yield a check that autocast changes only by ``with torch.autocast(...)``, to be called before each operation.

    The exporter does not see ``torch.set_autocast_enabled`` and ``torch.set_autocast_dtype``. The check raises
    UnsupportedOp.
    """
    kinds = [*{device.type, "cpu"} - {"meta"}]
    explicit = _autocast_dtypes(kinds)

    def recording(original: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(*args: Any) -> Any:
            nonlocal explicit
            result = original(*args)
            explicit = _autocast_dtypes(kinds)
            return result

        return recorded

    def check() -> None:
        if _autocast_dtypes(kinds) != explicit:
            why = "it switches autocast, or the type that it casts to, without `with torch.autocast(...)`: use that"
            raise UnsupportedOp("torch.set_autocast_enabled", "", why, whole=False)

    place: Any = torch.autocast
    with (
        patched(place, "__enter__", recording(place.__enter__)),
        patched(place, "__exit__", recording(place.__exit__)),
    ):
        yield check


def _autocast_dtypes(kinds: list[str]) -> list[torch.dtype | None]:
    return [torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None for kind in kinds]


_OPERATIONS = {
    "nearest": "upsample_nearest{}d",
    "nearest-exact": "_upsample_nearest_exact{}d",
    "linear": "upsample_linear{}d",
    "bilinear": "upsample_bilinear{}d",
    "bicubic": "upsample_bicubic{}d",
    "trilinear": "upsample_trilinear{}d",
}
"""Operations by the mode of ``F.interpolate``, for a number of dimensions."""


def interpolation_dtype(x: Tensor, mode: str = "nearest", *, antialias: bool = False) -> torch.dtype:
    """Return the type that ``F.interpolate`` computes in.

    Under autocast on a GPU PyTorch computes it in float32 from release 2.11 on; the exporter decomposes it before that
    is decided.
    """
    lower = x.dtype in (torch.float16, torch.bfloat16)
    if not lower or x.device.type != "cuda" or not torch.is_autocast_enabled("cuda"):
        return x.dtype
    name = _OPERATIONS.get(mode, "").format(x.ndim - 2)
    return torch.float32 if name and _is_cast(f"_{name}_aa" if antialias else name) else x.dtype


def _is_cast(name: str) -> bool:
    """Return whether autocast of this release casts the operation, which can only be to float32."""
    known: Any = vars(torch._C)["_dispatch_has_kernel_for_dispatch_key"]
    return bool(known(f"aten::{name}", "AutocastCUDA"))
