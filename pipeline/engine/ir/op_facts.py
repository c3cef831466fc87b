"""ATen operations by name, and facts about them that several files ask for, whatever their arguments.

Facts go by the operation's name without namespace and overload. Facts that a single file needs are in that file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tvae.pipeline.engine.ir.graph import Node


class Elements(Enum):
    """The elements of its first operand that a view shows, and their order."""

    ALL = auto()
    """The operand itself under another name."""
    RESHAPED = auto()
    """All in the same order, in other dimensions."""
    TURNED = auto()
    """All, with the dimensions in another order."""
    REPEATED = auto()
    """All, some of them several times."""
    RANGE = auto()
    """A range of a dimension."""
    PIECE = auto()
    """One place of a dimension, or one of several tensors."""
    OTHER = auto()
    """As the strides say, or elements of another type."""


class Memory(Enum):
    """The memory of a view."""

    SAME = auto()
    """Always in its operand's memory."""
    IN_A_ROW = auto()
    """In its operand's memory if the elements lie in a row; else it is a copy."""
    UNCHANGED = auto()
    """In its operand's memory if that has the wanted type and layout; else it is a copy."""


class View(NamedTuple):
    """An operation whose result may share its first operand's memory."""

    elements: Elements
    memory: Memory = Memory.SAME


def _all(names: str, elements: Elements, memory: Memory = Memory.SAME) -> dict[str, View]:
    return dict.fromkeys(names.split(), View(elements, memory))


VIEWS: Mapping[str, View] = {
    **_all("alias detach lift_fresh positive", Elements.ALL),
    **_all("contiguous to type_as cpu cuda pin_memory", Elements.ALL, Memory.UNCHANGED),
    **_all("conj resolve_conj resolve_neg", Elements.ALL, Memory.UNCHANGED),
    **_all("dropout feature_dropout alpha_dropout feature_alpha_dropout", Elements.ALL, Memory.UNCHANGED),
    **_all("view view_as unflatten squeeze unsqueeze _unsafe_view", Elements.RESHAPED),
    **_all("reshape reshape_as flatten ravel", Elements.RESHAPED, Memory.IN_A_ROW),
    **_all("permute transpose t movedim moveaxis swapaxes swapdims", Elements.TURNED),
    **_all("adjoint mT mH matrix_H numpy_T", Elements.TURNED),
    **_all("expand expand_as broadcast_to", Elements.REPEATED),
    **_all("slice narrow", Elements.RANGE),
    **_all("select getitem split split_with_sizes chunk unbind tensor_split hsplit vsplit dsplit", Elements.PIECE),
    **_all("as_strided _reshape_alias diagonal linalg_diagonal unfold", Elements.OTHER),
    **_all("real imag view_as_real view_as_complex _conj _neg_view", Elements.OTHER),
}
"""All operations on dense tensors whose result may lie in their first operand's memory."""


PLAIN_CONVOLUTIONS: Mapping[str, int] = {"conv1d": 1, "conv2d": 2, "conv3d": 3}
"""Convolutions and their spatial dimensions."""


CONVOLUTIONS = (*PLAIN_CONVOLUTIONS, "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "uneven_conv")
"""All convolutions; the bias is the third argument of each."""


NEAREST: Mapping[str, int] = {
    **{f"upsample_nearest{n}d": n for n in (1, 2, 3)},
    **{f"_upsample_nearest_exact{n}d": n for n in (1, 2, 3)},
}
"""Nearest upsampling, which only copies elements, and its spatial dimensions."""


CASTS = ("to", "_to_copy", "type_as")
"""Operations whose results differ from their first operands in type, device or layout alone."""


NOISE = ("randn", "rand", "randn_like", "rand_like")
"""Operations that draw from the generator that the caller gave."""


_COMPUTED_AS_VIEWS = {name for name, view in VIEWS.items() if view.memory is not Memory.UNCHANGED}


_RESHAPES = {name for name, view in VIEWS.items() if view.elements is Elements.RESHAPED}


_REARRANGED = {name for name, view in VIEWS.items() if view.elements not in (Elements.ALL, Elements.RESHAPED)}


def is_view(name: str) -> bool:
    """True if the engine computes it as a view: in its operand's memory, except a reshape of what lies in pieces."""
    return name in _COMPUTED_AS_VIEWS


def is_turned(name: str) -> bool:
    """True if the result has its first operand's dimensions in another order."""
    return name in VIEWS and VIEWS[name].elements is Elements.TURNED


def is_reshape(node: Node) -> bool:
    """True if the result has its first operand's elements in the same order, in other dimensions."""
    return node.kind == "call" and node.op in _RESHAPES and node.target != "aten.view.dtype"


def rearranges(name: str) -> bool:
    """True for a view whose elements do not lie in a row any more, so that another shape of them is a copy."""
    return name in _REARRANGED


# -- operations by name ------------------------------------------------------------------------------------------------


STRIDED = ("as_strided", "as_strided_copy", "as_strided_scatter")
"""Operations that find elements by strides."""


_BY_MEMORY = {
    *("aten.view.dtype", "aten.view_as_complex.default"),
    *(f"aten.{name}.default" for name in STRIDED),
    *("aten.kron.default", "aten.take_along_dim.default", "aten.native_group_norm.default"),
}


def resolve(target: str) -> Callable[..., Any]:
    """Return the operation of a target such as ``aten.conv2d.default``."""
    operation: Callable[..., Any] = attrgetter(target)(torch.ops)
    return operation


def layout_independent(target: str) -> Callable[..., Any]:
    """Return the operation. One that goes by the memory of its operands gets them in the order of their dimensions, as
    in the model; the engine's maps may have the channels last."""
    if target in ("aten.view.default", "aten._unsafe_view.default"):
        return _reshape
    if target == "aten.view_as.default":
        return _reshape_as
    if target in ("aten.max_pool3d.default", "aten.max_pool3d_with_indices.default"):
        return partial(_on_contiguous_clip, resolve(target))
    return partial(_on_contiguous, resolve(target)) if target in _BY_MEMORY else resolve(target)


def _reshape(x: Tensor, shape: Sequence[int]) -> Tensor:
    return x.reshape(shape)


def _reshape_as(x: Tensor, other: Tensor) -> Tensor:
    return x.reshape(other.shape)


def _contiguous(x: Tensor) -> Tensor:
    """Return the value in memory of its own, in the order of its dimensions."""
    is_laid_out = x.storage_offset() == 0 and x.stride() == torch.empty(x.shape, device="meta").stride()
    return x if is_laid_out else x.clone(memory_format=torch.contiguous_format)


def _on_contiguous_clip(operation: Callable[..., Any], x: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Call the operation. PyTorch refuses a single clip, of four dimensions, that lies as a picture with channels
    last."""
    return operation(_contiguous(x) if x.ndim == 4 else x, *args, **kwargs)


def _on_contiguous(operation: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    tensors = [_contiguous(a) if isinstance(a, Tensor) else a for a in args]
    return operation(*tensors, **{k: _contiguous(a) if isinstance(a, Tensor) else a for k, a in kwargs.items()})
