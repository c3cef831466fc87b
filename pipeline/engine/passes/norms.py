"""Passes around normalisations: a group or RMS norm with its weights and SiLU becomes one operation, takes borders and
earlier frames along, and gets its statistics from the residual sum before it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from tvae.pipeline.engine.ir.graph import Graph, Meta, Node, Ref
from tvae.pipeline.engine.ir.op_facts import CONVOLUTIONS, is_reshape
from tvae.pipeline.engine.passes.rewriter import Rewriter

_FRAMES = 2
"""The dimension of a clip's frames."""


def fuse_norm_act(graph: Graph) -> Graph:
    """group_norm and silu -> ``tvae.norm_act``, whose statistics can be taken where the normalised value is made.

    A flattening view before the norm moves after it.
    """
    r = Rewriter(graph)
    for id_, node in r.nodes():
        norm = r.node(node.args[0]) if node.op == "silu" else None
        if norm is not None and norm.op == "group_norm" and r.read_once(node.args[0]) and norm.meta == node.meta:
            _write_norm_act(r, id_, norm, "silu")
        elif node.op == "group_norm":
            _write_norm_act(r, id_, node, None)
    return r.done()


def _write_norm_act(r: Rewriter, id_: int, norm: Node, act: str | None) -> None:
    x, groups, *rest = norm.args
    weight, bias, eps = [*rest, None, None, None][:3]
    args = (groups, *r.renamed((weight, bias)), 1e-5 if eps is None else eps, None, act)
    source = r.node(x)
    # GroupNorm does not see how the pixels are arranged: before the view they are still where they were made
    if source is not None and is_reshape(source) and isinstance(source.args[0], Ref):
        base = r.node(source.args[0])
        assert base is not None
        if len(base.meta.shape) > 2 and len(source.meta.shape) > 2 and base.meta.shape[:2] == source.meta.shape[:2]:
            normed = r.emit_fused("norm_act", (*r.renamed((source.args[0],)), *args), base.meta, norm.module)
            shape = r.renamed(source.args[1:])
            view = Node("call", source.target, (normed, *shape), source.kwargs, source.module, (source.meta,))
            r.substitute(id_, view)
            return
    r.replace(id_, "norm_act", *r.renamed((x,)), *args, module=norm.module)


def fuse_norm_pad(graph: Graph) -> Graph:
    """``tvae.norm_act`` and a pad that alone reads it -> ``tvae.norm_pad``: the map is written anyway."""
    r = Rewriter(graph)
    for id_, node in r.nodes():
        norm = r.node(node.args[0]) if node.op == "pad" and r.read_once(node.args[0]) else None
        if norm is None or norm.op != "norm_act" or len(norm.meta.shape) < 4 or not _pads_outwards(node):
            continue
        mode = node.args[2] if len(node.args) > 2 else node.kwargs.get("mode", "constant")
        r.replace(id_, "norm_pad", *r.renamed(norm.args), list(node.args[1]), mode, module=norm.module)
    return r.done()


def _pads_outwards(node: Node) -> bool:
    """True for a pad of spatial dimensions, outwards; a constant one with zeros."""
    mode = node.args[2] if len(node.args) > 2 else node.kwargs.get("mode", "constant")
    fill = node.args[3] if len(node.args) > 3 else node.kwargs.get("value")
    outwards = all(type(n) is int and n >= 0 for n in node.args[1]) and len(node.args[1]) <= 6
    return outwards and mode in ("constant", "replicate", "reflect") and not fill


def fuse_residual(graph: Graph) -> Graph:
    """add(x, y) of a convolution's result, or read by a normalisation -> ``tvae.residual(x, y, None)``, which can take
    statistics on its way."""
    r = Rewriter(graph)
    for id_, node in r.nodes():
        if not _plain_sum(r, node):
            continue
        x, y = node.args[:2]
        is_conv = [_is_convolution(r.node(t)) and r.read_once(t) for t in (x, y)]
        normed = any(i >= 0 and r.graph.nodes[i].op == "norm_act" for i in r.readers(id_))
        if not any(is_conv) and not normed:
            continue
        first, second = (x, y) if is_conv[0] else (y, x)
        r.replace(id_, "residual", *r.renamed((first, second)), None)
    return r.done()


def _plain_sum(r: Rewriter, node: Node) -> bool:
    if node.target != "aten.add.Tensor" or node.kwargs or len(node.args) != 2:
        return False
    x, y = (r.node(a) for a in node.args)
    return x is not None and y is not None and x.meta == y.meta == node.meta and len(node.meta.shape) > 2


def _is_convolution(node: Node | None) -> bool:
    return node is not None and node.op in CONVOLUTIONS


@dataclass
class _Norm:
    """The normalised value of a node, its weights, and how its size is measured."""

    x: Ref
    weight: Ref | None
    bias: Ref | None
    eps: float
    form: str


def fuse_rms_norm(graph: Graph) -> Graph:
    """Normalisation of every pixel's channels by their size, its weights and SiLU -> ``tvae.rms_norm_act``.

    Three spellings are known: Wan's ``F.normalize(x, dim=1)·sqrt(C)·weight + bias``, divided in float32 where the type
    is narrower, the root mean square over a channel dimension that is moved to the end and back, and that over
    dimension 1.
    """
    r = Rewriter(graph)
    for id_, node in r.nodes():
        inner = r.node(node.args[0]) if node.op == "silu" and r.read_once(node.args[0]) else None
        norm, act = (_norm_of(r, inner), "silu") if inner is not None else (None, None)
        if norm is None:
            norm, act = _norm_of(r, node), None
        if norm is None:
            continue
        x, weight, bias = r.renamed((norm.x, norm.weight, norm.bias))
        r.replace(id_, "rms_norm_act", x, weight, bias, norm.eps, norm.form, act, None)
    return r.done()


def _norm_of(r: Rewriter, node: Node) -> _Norm | None:
    if node.kind != "call" or len(node.meta.shape) < 3:
        return None
    return _normalised(r, node) or _moved_to_the_end(r, node) or _over_channels(r, node)


def _normalised(r: Rewriter, node: Node) -> _Norm | None:
    """Match x / max(‖x‖, eps)·sqrt(C)·weight + bias over dimension 1."""
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
    """Match movedim(y, -1, 1) of y = x·rsqrt(mean(x²) + eps)·weight + bias, where x = movedim(., 1, -1).

    For narrow types, squares and the product are of a wider one, and the result is narrowed before the weights.
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
    moved, squares = r.node(inner.args[0]), _mean_of_squares(r, r.node(inner.args[1]), "rsqrt", inner.args[0], -1)
    if squares is None or moved is None or moved.op != "movedim" or list(moved.args[1:]) != [1, -1]:
        return None
    eps, kind = squares
    if moved.meta.dtype != narrow or kind not in (narrow, torch.promote_types(narrow, torch.float32)):
        return None
    return _Norm(moved.args[0], weight, bias, eps, "rms")


def _over_channels(r: Rewriter, node: Node) -> _Norm | None:
    """Match x / sqrt(mean(x²) + eps)·weight + bias over dimension 1, or x·rsqrt(mean(x²) + eps), all in one type."""
    channels, dims = node.meta.shape[1], len(node.meta.shape)
    if dims < 4:  # tokens: dimension 1 is not that of channels
        return None
    node, weight, bias = _affine(r, node, lambda shape: list(shape) == [channels, *[1] * (dims - 2)])
    if node.op not in ("div", "mul") or len(node.args) != 2 or node.kwargs or not isinstance(channels, int):
        return None
    x, root = (r.node(arg) if isinstance(arg, Ref) else None for arg in node.args)
    if x is None or not r.read_once(node.args[1]) or x.meta != node.meta:
        return None
    squares = _mean_of_squares(r, root, "sqrt" if node.op == "div" else "rsqrt", node.args[0], 1)
    return (
        None
        if squares is None or squares[1] != node.meta.dtype
        else _Norm(node.args[0], weight, bias, squares[0], "rms")
    )


def _mean_of_squares(r: Rewriter, root: Node | None, op: str, x: Ref, dim: int) -> tuple[float, torch.dtype] | None:
    """Return eps, and the squares' type, if a node is that root of mean(x²) + eps over a dimension that is kept."""
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
    """Return (the value in front, weight, bias) of ``·weight`` and ``+ bias`` by parameters of a shape that fits."""
    bias = _parameter(r, node, "add", fits)
    if bias is not None:
        node = r.graph.nodes[node.args[0].id]
    weight = _parameter(r, node, "mul", fits)
    if weight is not None:
        node = r.graph.nodes[node.args[0].id]
    return node, weight, bias


def _parameter(r: Rewriter, node: Node, op: str, fits: Any) -> Ref | None:
    """Return the second operand of such an operation if it is a parameter, and the first one is read here alone."""
    if node.op != op or len(node.args) != 2 or node.kwargs or not r.read_once(node.args[0]):
        return None
    other = r.node(node.args[1])
    if other is None or other.kind != "param" or not fits(other.meta.shape) or other.meta.dtype != node.meta.dtype:
        return None
    ref: Ref = node.args[1]
    return ref


def _operation(r: Rewriter, node: Node, op: str, *, this: bool = False) -> Node | None:
    """Return the first operand's node of such an operation, read here alone; with ``this``, the node itself."""
    if node.op != op or node.kwargs or len(node.args) != 2:
        return None
    return node if this else r.node(node.args[0]) if r.read_once(node.args[0]) else None


# -- frames before a clip ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Span:
    """Frames [lo, hi) of a joined clip (a node of the new graph)."""

    joined: Ref
    lo: int
    hi: int

    def part(self, lo: int, hi: int) -> _Span:
        """Return frames [lo, hi) of the span."""
        return _Span(self.joined, self.lo + lo, self.lo + hi)


def join_earlier_frames(graph: Graph) -> Graph:
    """cat([before, rms_norm_act(x)], 2) -> rms_norm_act(x, before), and others that hold its frames read them there.

    A causal convolution over time reads ``cat([cache, x], 2)``, and the next cache is cut from the same frames. Where x
    is normalised, the norm makes the joined clip itself, and the next cache is a copy of some of its frames: x is
    neither stored alone nor copied.
    """
    r = Rewriter(graph)
    spans: dict[int, _Span] = {}
    removed: set[int] = set()
    for id_, node in enumerate(r.graph.nodes):
        join = _join_of(r, id_)
        if join is not None:
            before = r.graph.nodes[join].args[0][0]
            args = (*node.args, *[None] * (7 - len(node.args)), before)
            meta = r.graph.nodes[join].meta
            joined = r.emit_fused("rms_norm_act", tuple(r.renamed(args)), meta, node.module)
            whole = _Span(joined, 0, _frames(meta))
            first = _frames(r.graph.nodes[before.id].meta)
            spans |= {before.id: whole.part(0, first), id_: whole.part(first, whole.hi), join: whole}
            removed.add(id_)
        elif id_ in spans and node.op == "cat":
            r.redirect(id_, spans[id_].joined)
        else:
            span = _span(r, node, spans)
            if span is not None:
                spans[id_] = span
            if span is not None and node.op == "cat":
                r.substitute(id_, _call("clone", (_cut(r, span, node),), node))
            elif span is not None and node.args[0].id in removed:
                r.redirect(id_, _cut(r, span, node))
            else:
                r.keep(id_)
    return r.done()


def _join_of(r: Rewriter, id_: int) -> int | None:
    """Return the node that joins a normalisation's result after other frames, if all its readers can read that."""
    node = r.graph.nodes[id_]
    readers = r.readers(id_)
    if node.op != "rms_norm_act" or len(node.meta.shape) != 5 or len(node.args) > 7 or -1 in readers:
        return None
    joins, frames = [i for i in readers if r.graph.nodes[i].op == "cat"], node.meta.shape[_FRAMES]
    if len(joins) != 1 or not isinstance(frames, int):
        return None
    if any(_sliced(r.graph.nodes[i], frames) is None for i in readers if i != joins[0]):
        return None
    join = r.graph.nodes[joins[0]]
    if not _joins_frames(join) or len(join.args[0]) != 2:
        return None
    before, after = join.args[0]
    first = r.graph.nodes[before.id].meta
    alike = first.dtype == node.meta.dtype and isinstance(first.shape[_FRAMES], int)
    return joins[0] if alike and after.id == id_ and before.id < id_ else None


def _span(r: Rewriter, node: Node, spans: dict[int, _Span]) -> _Span | None:
    """Return the frames of a joined clip that a node's value consists of, or None."""
    if node.op == "cat":
        return _united([spans.get(piece.id) for piece in node.args[0]]) if _joins_frames(node) else None
    source = node.args[0] if node.kind == "call" and node.args else None
    if not isinstance(source, Ref):
        return None
    if node.op == "unsqueeze":  # of a single frame
        select = r.graph.nodes[source.id]
        span = spans.get(select.args[0].id) if select.op == "select" else None
        if span is None or node.args[1] != _FRAMES or select.args[1] != _FRAMES:
            return None
        frame = range(span.hi - span.lo)[select.args[2]]
        return span.part(frame, frame + 1)
    span = spans.get(source.id)
    if span is None or node.kwargs:
        return None
    if node.op in ("clone", "contiguous"):
        return span
    cut = _sliced(node, span.hi - span.lo)
    return None if cut is None else span.part(*cut)


def _joins_frames(cat: Node) -> bool:
    """True if it joins clips one after the other."""
    dim = cat.args[1] if len(cat.args) > 1 else cat.kwargs.get("dim", 0)
    return dim in (_FRAMES, _FRAMES - len(cat.meta.shape))


def _united(parts: list[_Span | None]) -> _Span | None:
    """Join spans that follow each other in one clip."""
    spans = [span for span in parts if span is not None]
    follow = all(a.joined == b.joined and a.hi == b.lo for a, b in pairwise(spans))
    return _Span(spans[0].joined, spans[0].lo, spans[-1].hi) if spans and follow and len(spans) == len(parts) else None


def _sliced(node: Node, frames: int) -> tuple[int, int] | None:
    """Return which of its operand's frames a node takes, one after the other; None if it does something else."""
    if node.op != "slice" or node.kwargs or len(node.args) < 2 or node.args[1] != _FRAMES:
        return None
    arguments = dict(zip(("start", "stop", "step"), node.args[2:], strict=False))
    start, stop = arguments.get("start"), arguments.get("stop")
    if arguments.get("step", 1) != 1 or not all(v is None or isinstance(v, int) for v in (start, stop)):
        return None
    lo, hi, _ = slice(start, stop).indices(frames)
    return (lo, hi) if lo < hi else None


def _cut(r: Rewriter, span: _Span, node: Node) -> Ref:
    return r.emit(_call("slice.Tensor", (span.joined, _FRAMES, span.lo, span.hi), node))


def _call(op: str, args: tuple[object, ...], node: Node) -> Node:
    target = op if "." in op else f"{op}.default"
    return Node("call", f"aten.{target}", args, {}, node.module, (Meta(node.meta.shape, node.meta.dtype),))


def _frames(meta: Meta) -> int:
    frames = meta.shape[_FRAMES]
    assert isinstance(frames, int)
    return frames
