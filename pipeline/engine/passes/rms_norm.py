"""Pass: normalisation of every pixel's channels by their size, its weights and the SiLU after it become one operation.

Three spellings are known: Wan's ``F.normalize(x, dim=1)·sqrt(C)·weight + bias``, divided in float32 where the type is
narrower, the root mean square over a channel dimension that is moved to the end and back, and that over dimension 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from tvae.pipeline.engine.ir.graph import Graph, Node, Ref
from tvae.pipeline.engine.passes.rewriter import Rewriter

__all__ = ["fuse_rms_norm"]


@dataclass
class _Norm:
    """What a node computes: the normalised value, its weights, and how its size is measured."""

    x: Ref
    weight: Ref | None
    bias: Ref | None
    eps: float
    form: str


def fuse_rms_norm(graph: Graph) -> Graph:
    """-> ``tvae.rms_norm_act``."""
    r = Rewriter(graph)
    for id_, node in enumerate(r.graph.nodes):
        inner = r.node(node.args[0]) if node.op == "silu" and r.read_once(node.args[0]) else None
        norm, act = (_found(r, inner), "silu") if inner is not None else (None, None)
        if norm is None:
            norm, act = _found(r, node), None
        if norm is None:
            r.keep(id_)
            continue
        x, weight, bias = r.renamed((norm.x, norm.weight, norm.bias))
        r.replace(id_, "rms_norm_act", x, weight, bias, norm.eps, norm.form, act, None)
    return r.done()


def _found(r: Rewriter, node: Node) -> _Norm | None:
    if node.kind != "call" or len(node.meta.shape) < 3:
        return None
    return _normalised(r, node) or _moved_to_the_end(r, node) or _over_channels(r, node)


def _normalised(r: Rewriter, node: Node) -> _Norm | None:
    """x / max(‖x‖, eps)·sqrt(C)·weight + bias over dimension 1."""
    channels = node.meta.shape[1]
    per_channel = [channels, *[1] * (len(node.meta.shape) - 2)]
    node, weight, bias = _affine(r, node, lambda shape: list(shape) == per_channel)
    scaled = _operation(r, node, "mul")
    if scaled is None or not isinstance(channels, int) or isinstance(node.args[1], Ref):
        return None
    if not isinstance(node.args[1], int | float) or not math.isclose(node.args[1], channels**0.5, rel_tol=1e-9):
        return None
    narrow = scaled.meta.dtype
    if scaled.op == "to" and r.read_once(scaled.args[0]):  # the division was done in a wider type
        scaled = r.node(scaled.args[0])
        assert scaled is not None
    divided = _operation(r, scaled, "div", this=True)
    size = r.node(divided.args[1]) if divided is not None else None
    if divided is None or size is None or size.op != "expand_as":
        return None
    floor = r.node(size.args[0])
    length = r.node(floor.args[0]) if floor is not None and floor.op == "clamp_min" else None
    if floor is None or length is None or length.op != "linalg_vector_norm" or length.args[0] != divided.args[0]:
        return None
    if [length.args[1], list(length.args[2]), *length.args[3:]] != [2, [1], True] or length.kwargs:
        return None
    wide = r.node(divided.args[0])
    if divided.meta.dtype == narrow:
        return _Norm(divided.args[0], weight, bias, floor.args[1], "normalize")
    source = r.node(wide.args[0]) if wide is not None and wide.op == "to" else None
    if source is None or source.meta.dtype != narrow:
        return None
    assert wide is not None
    return _Norm(wide.args[0], weight, bias, floor.args[1], "normalize")


def _moved_to_the_end(r: Rewriter, node: Node) -> _Norm | None:
    """movedim(y, -1, 1) of y = x·rsqrt(mean(x²) + eps)·weight + bias, where x = movedim(., 1, -1).

    Where the type is narrow, squares and the product are of a wider one, and what comes out is narrowed before weights.
    """
    if node.op != "movedim" or list(node.args[1:]) != [-1, 1] or not r.read_once(node.args[0]):
        return None
    inner = r.node(node.args[0])
    assert inner is not None
    inner, weight, bias = _affine(r, inner, lambda shape: shape == (inner.meta.shape[-1],))
    narrow = inner.meta.dtype
    if inner.op == "to" and r.read_once(inner.args[0]):
        wide = r.node(inner.args[0])
        assert wide is not None
        inner = wide
    if inner.op != "mul" or not isinstance(inner.args[1], Ref):
        return None
    moved, found = r.node(inner.args[0]), _mean_of_squares(r, r.node(inner.args[1]), "rsqrt", inner.args[0], -1)
    if found is None or moved is None or moved.op != "movedim" or list(moved.args[1:]) != [1, -1]:
        return None
    eps, kind = found
    if moved.meta.dtype != narrow or kind not in (narrow, torch.promote_types(narrow, torch.float32)):
        return None
    return _Norm(moved.args[0], weight, bias, eps, "rms")


def _over_channels(r: Rewriter, node: Node) -> _Norm | None:
    """x / sqrt(mean(x²) + eps)·weight + bias over dimension 1, or x·rsqrt(mean(x²) + eps), all in one type."""
    channels, dims = node.meta.shape[1], len(node.meta.shape)
    if dims < 4:  # tokens: dimension 1 is not that of channels
        return None
    node, weight, bias = _affine(r, node, lambda shape: list(shape) == [channels, *[1] * (dims - 2)])
    if node.op not in ("div", "mul") or len(node.args) != 2 or node.kwargs or not isinstance(channels, int):
        return None
    x, root = (r.node(each) if isinstance(each, Ref) else None for each in node.args)
    if x is None or not r.read_once(node.args[1]) or x.meta != node.meta:
        return None
    found = _mean_of_squares(r, root, "sqrt" if node.op == "div" else "rsqrt", node.args[0], 1)
    return None if found is None or found[1] != node.meta.dtype else _Norm(node.args[0], weight, bias, found[0], "rms")


def _mean_of_squares(r: Rewriter, root: Node | None, op: str, x: Ref, dim: int) -> tuple[float, torch.dtype] | None:
    """eps, and the type of the squares, where a node is that root of mean(x²) + eps over a dimension that is kept."""
    total = r.node(root.args[0]) if root is not None and root.op == op else None
    mean = r.node(total.args[0]) if total is not None and total.op == "add" else None
    square = r.node(mean.args[0]) if mean is not None and mean.op == "mean" else None
    if total is None or mean is None or square is None or square.op != "pow" or isinstance(total.args[1], Ref):
        return None
    squared, over = square.args[0], [list(mean.args[1]), *mean.args[2:]] if len(mean.args) > 1 else []
    widened = r.node(squared)
    if squared != x and widened is not None and widened.op == "to":
        squared = widened.args[0]
    dims = len(square.meta.shape)
    same_dim = len(over) == 2 and [n % dims for n in over[0]] == [dim % dims] and over[1] is True
    if (squared, square.args[1]) != (x, 2) or not same_dim or mean.kwargs:
        return None
    return total.args[1], square.meta.dtype


def _affine(r: Rewriter, node: Node, fits: Any) -> tuple[Node, Ref | None, Ref | None]:
    """(what lies in front, weight, bias) of ``·weight`` and ``+ bias`` by parameters of a shape that fits."""
    bias = _parameter(r, node, "add", fits)
    if bias is not None:
        node = r.graph.nodes[node.args[0].id]
    weight = _parameter(r, node, "mul", fits)
    if weight is not None:
        node = r.graph.nodes[node.args[0].id]
    return node, weight, bias


def _parameter(r: Rewriter, node: Node, op: str, fits: Any) -> Ref | None:
    """The second operand of such an operation where it is a parameter, and the first one is read here alone."""
    if node.op != op or len(node.args) != 2 or node.kwargs or not r.read_once(node.args[0]):
        return None
    other = r.node(node.args[1])
    if other is None or other.kind != "param" or not fits(other.meta.shape) or other.meta.dtype != node.meta.dtype:
        return None
    ref: Ref = node.args[1]
    return ref


def _operation(r: Rewriter, node: Node, op: str, *, this: bool = False) -> Node | None:
    """The first operand's node of such an operation, read here alone; ``this``: the node itself."""
    if node.op != op or node.kwargs or len(node.args) != 2:
        return None
    return node if this else r.node(node.args[0]) if r.read_once(node.args[0]) else None
