"""What is true of operations whatever their arguments: the facts that several files ask for.

Operations go by their names without namespace and overload. Facts that a single file needs are in that file.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import NamedTuple

from tvae.pipeline.engine.ir.graph import Node

__all__ = [
    *("CASTS", "CONVOLUTIONS", "NEAREST", "NOISE", "PLAIN_CONVOLUTIONS", "VIEWS"),
    *("Elements", "Memory", "View", "is_reshape", "is_turned", "is_view", "rearranges"),
]


class Elements(Enum):
    """Which elements of its first operand a view shows, and in what order."""

    ALL = auto()
    """The operand itself under another name."""
    RESHAPED = auto()
    """All in the same order, in other dimensions."""
    TURNED = auto()
    """All, with the dimensions in another order."""
    REPEATED = auto()
    """All, some of them several times."""
    RANGE = auto()
    """Those of a range of a dimension."""
    PIECE = auto()
    """Those at one place of a dimension, or one of several tensors."""
    OTHER = auto()
    """Whatever the strides say, or elements of another type."""


class Memory(Enum):
    """Where a view lies."""

    SAME = auto()
    """Always in its operand's memory."""
    IN_A_ROW = auto()
    """In its operand's memory where the elements lie in a row; else it is a copy."""
    UNCHANGED = auto()
    """In its operand's memory where that has the wanted type and layout; else it is a copy."""


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
"""Every operation on dense tensors whose result may lie in its first operand's memory."""

PLAIN_CONVOLUTIONS: Mapping[str, int] = {"conv1d": 1, "conv2d": 2, "conv3d": 3}
"""And their spatial dimensions."""
CONVOLUTIONS = (*PLAIN_CONVOLUTIONS, "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "uneven_conv")
"""Of each the bias is the third argument."""

NEAREST: Mapping[str, int] = {
    **{f"upsample_nearest{n}d": n for n in (1, 2, 3)},
    **{f"_upsample_nearest_exact{n}d": n for n in (1, 2, 3)},
}
"""Nearest upsampling, which only copies elements, and its spatial dimensions."""

CASTS = ("to", "_to_copy", "type_as")
"""Their results differ from their first operands in type, device or layout alone."""

NOISE = ("randn", "rand", "randn_like", "rand_like")
"""They draw from the generator that the caller gave."""


def is_view(name: str) -> bool:
    """Does the engine compute it as a view: in its operand's memory, but for a reshape of what lies in pieces?"""
    return name in _COMPUTED_AS_VIEWS


def is_turned(name: str) -> bool:
    """Has the result the dimensions of its first operand in another order?"""
    return name in VIEWS and VIEWS[name].elements is Elements.TURNED


def is_reshape(node: Node) -> bool:
    """Has the result the elements of its first operand in the same order, in other dimensions?"""
    return node.kind == "call" and node.op in _RESHAPES and node.target != "aten.view.dtype"


def rearranges(name: str) -> bool:
    """Is it a view whose elements do not lie in a row any more? Then another shape of them is a copy."""
    return name in _REARRANGED


_COMPUTED_AS_VIEWS = {name for name, view in VIEWS.items() if view.memory is not Memory.UNCHANGED}
_RESHAPES = {name for name, view in VIEWS.items() if view.elements is Elements.RESHAPED}
_REARRANGED = {name for name, view in VIEWS.items() if view.elements not in (Elements.ALL, Elements.RESHAPED)}
