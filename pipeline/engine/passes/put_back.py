"""What a value becomes when one of its views has been written to."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvae.pipeline.engine.ir.graph import Meta, Node, Ref, Size
from tvae.pipeline.engine.ir.op_facts import VIEWS, Elements

__all__ = ["put_back"]

_SWAPS = ("transpose", "swapaxes", "swapdims")
_MATRIX = ("t", "mT", "numpy_T", "matrix_H", "adjoint", "mH")


def put_back(view: Node, pieces: Node | None, whole: Meta, new: int, old: Callable[[], int]) -> Node | None:
    """The operation that makes the viewed value from what its view is ``new``; None where that is the value itself.

    pieces: where the view is one result of a split, the split. whole: shape and type of the viewed value. old: its
    number before the write. Raises ValueError for views that cannot be written through.
    """
    if pieces is not None:
        return _piece(view, pieces, whole, new, old)
    elements = VIEWS[view.op].elements
    if elements is Elements.ALL:
        return None
    if elements is Elements.RESHAPED:
        return _call("aten.reshape.default", (Ref(new), whole.shape), whole)
    if elements is Elements.TURNED:
        return _turned_back(view, whole, new)
    if elements is Elements.RANGE:
        if view.op == "narrow":
            dim, start, length = view.args[1:4]
            if isinstance(start, int) and start < 0:
                start = _sum([whole.shape[dim % len(whole.shape)], start])
            end, step = _sum([start, length]), 1
        else:
            given = list(view.args[1:])
            dim, start, end, step = given + [0, None, None, 1][len(given) :]
        if view.meta.shape == whole.shape:
            return None
        return _call("aten.slice_scatter.default", (Ref(old()), Ref(new), dim, start, end, step), whole)
    if view.op == "select":
        return _call("aten.select_scatter.default", (Ref(old()), Ref(new), *view.args[1:]), whole)
    raise ValueError(f"'{view.op}' has no place for every element")


def _piece(view: Node, pieces: Node, whole: Meta, new: int, old: Callable[[], int]) -> Node:
    """One result of a split, chunk or unbind."""
    index, ndim = view.args[1], len(whole.shape)
    at = 1 if pieces.op == "unbind" else 2
    dim = (pieces.args[at] if len(pieces.args) > at else pieces.kwargs.get("dim", 0)) % ndim
    if pieces.op == "unbind":
        return _call("aten.select_scatter.default", (Ref(old()), Ref(new), dim, index), whole)
    if pieces.op not in ("split", "split_with_sizes", "tensor_split", "chunk"):
        raise ValueError(f"'{pieces.op}' gives it")
    start = _sum([meta.shape[dim] for meta in pieces.outputs[:index]])
    end = _sum([start, view.meta.shape[dim]])
    return _call("aten.slice_scatter.default", (Ref(old()), Ref(new), dim, start, end, 1), whole)


def _turned_back(view: Node, whole: Meta, new: int) -> Node:
    ndim = len(whole.shape)
    if view.op in _SWAPS:
        return _call("aten.transpose.int", (Ref(new), *view.args[1:3]), whole)
    if view.op in _MATRIX and ndim > 1:
        return _call("aten.transpose.int", (Ref(new), ndim - 2, ndim - 1), whole)
    if view.op == "permute":
        order = [d % ndim for d in view.args[1]]
        return _call("aten.permute.default", (Ref(new), tuple(order.index(d) for d in range(ndim))), whole)
    if view.op in ("movedim", "moveaxis"):
        return _call(view.target, (Ref(new), view.args[2], view.args[1]), whole)
    raise ValueError(f"'{view.op}' turns it")


def _sum(sizes: Sequence[int | Size]) -> int | Size:
    if all(isinstance(n, int) for n in sizes):
        return sum(n for n in sizes if isinstance(n, int))
    return Size(" + ".join(f"({n.expr})" if isinstance(n, Size) else str(n) for n in sizes))


def _call(target: str, args: tuple[object, ...], meta: Meta) -> Node:
    return Node("call", target, args, outputs=(meta,))
