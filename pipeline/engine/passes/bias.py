"""Pass: a convolution's bias is moved to the operations that read its result, where they can add it at no cost.

On a GPU PyTorch adds it in a pass of its own over the whole map. A normalisation takes it as an offset of its
statistics, or of the pixels that it measures; a residual sum adds it on its way; a convolution of single pixels, whose
own bias is left out, passes it on multiplied by its weight. Where one of several readers cannot, a sum without residual
adds it, and takes the statistics for the normalisation among them.
"""

from __future__ import annotations

from typing import Any

import torch

from tvae.pipeline.engine.ir.graph import Graph, Meta, Node, Ref
from tvae.pipeline.engine.ir.op_facts import CONVOLUTIONS, PLAIN_CONVOLUTIONS, is_reshape
from tvae.pipeline.engine.passes.rewriter import Rewriter

_PLACES = {"norm_act": 5, "rms_norm_act": 6, "residual": 2}
"""Operations that add a bias on their way, and its place among their arguments; it must be free."""


def move_bias(graph: Graph) -> Graph:
    """Move biases of convolutions into ``tvae.norm_act``, ``tvae.rms_norm_act`` and ``tvae.residual``."""
    r = Rewriter(graph)
    moved: dict[int, Ref] = {}  # convolution -> the bias that its result lacks, in new Refs
    for id_, node in r.nodes():
        missing = [moved[arg.id] for arg in node.args[:2] if isinstance(arg, Ref) and arg.id in moved]
        bias = _bias(node)
        if node.op in CONVOLUTIONS and (missing or (bias is not None and _all_can_add(r, id_, 1))):
            r.keep(id_, args=_without_bias(node))
            moved[id_] = _passed_on(r, node, missing[0]) if missing else r.renamed(bias)
        elif missing and _keeps_channels(node):
            r.keep(id_)
            moved[id_] = missing[0]
        elif bias is not None and "norm_act" in (r.graph.nodes[i].op for i in r.readers(id_) if i >= 0):
            plain = r.keep(id_, args=_without_bias(node))
            r.redirect(id_, r.emit_fused("residual", (plain, None, r.renamed(bias)), node.meta, node.module))
        elif node.op == "norm_act" and missing:
            x, groups, weight, bias, eps, _, act = node.args
            r.replace(id_, "norm_act", *r.renamed((x, groups, weight, bias, eps)), missing[0], act)
        elif node.op == "rms_norm_act" and missing:
            r.replace(id_, "rms_norm_act", *r.renamed(node.args[:6]), missing[0])
        elif node.op == "residual" and missing:
            x, other, _ = node.args
            r.replace(id_, "residual", *r.renamed((x, other)), _total(r, missing, node))
    return r.done()


def _bias(node: Node) -> Ref | None:
    bias = node.args[2] if node.op in CONVOLUTIONS and len(node.args) > 2 else None
    return bias if isinstance(bias, Ref) else None


def _without_bias(node: Node) -> tuple[Any, ...]:
    return (*node.args[:2], None, *node.args[3:])


def _all_can_add(r: Rewriter, id_: int, dim: int) -> bool:
    """True if every reader of a value can add its missing bias, a number for each channel. dim: that of the
    channels."""
    return all(i >= 0 and _can_add(r, i, id_, dim) for i in r.readers(id_)) and len(r.readers(id_)) > 0


def _can_add(r: Rewriter, id_: int, value: int, dim: int) -> bool:
    node = r.graph.nodes[id_]
    if _keeps_channels(node):
        moved = _channel_dim_after(r.graph.nodes[value], node, dim)
        return moved is not None and _all_can_add(r, id_, moved)
    if node.op in _PLACES:
        return dim == 1 and node.args[_PLACES[node.op]] is None
    return dim == 1 and node.args[0] == Ref(value) and _of_single_pixels(r, node) and _all_can_add(r, id_, 1)


def _keeps_channels(node: Node) -> bool:
    """True if it only reorders, merges or splits dimensions, so that the channels can be followed through it."""
    return node.op == "permute" or (is_reshape(node) and len(node.reads) == 1)


def _channel_dim_after(source: Node, node: Node, dim: int) -> int | None:
    """Return where the channels of ``dim`` are afterwards; None if they are no dimension any more, or it is hard to
    tell."""
    before, after = source.meta.shape, node.meta.shape
    if node.op == "permute":
        return [n % len(before) for n in node.args[1]].index(dim)
    if after[: dim + 1] == before[: dim + 1]:  # only later ones were merged or split
        return dim
    last = dim - len(before)
    return dim + len(after) - len(before) if after[last:] == before[last:] else None


def _of_single_pixels(r: Rewriter, node: Node) -> bool:
    """True for a 1x1 convolution of all channels, without borders."""
    weight = r.node(node.args[1]) if node.op in PLAIN_CONVOLUTIONS else None
    if weight is None or node.kwargs or set(weight.meta.shape[2:]) != {1}:
        return False
    _stride, padding, _dilation, groups = [*node.args[3:], *[None] * 4][:4]
    unpadded = padding in (None, 0, "same", "valid") or not any(padding)
    return unpadded and groups in (None, 1) and weight.meta.dtype == node.meta.dtype


def _passed_on(r: Rewriter, node: Node, missing: Ref) -> Ref:
    """Return the bias that a 1x1 convolution's result lacks if its input lacks this one; includes its own bias."""
    return _constant(r, "passed_on", (r.renamed(node.args[1]), missing, r.renamed(_bias(node))), node)


def _total(r: Rewriter, biases: list[Ref], node: Node) -> Ref:
    return biases[0] if len(biases) < 2 else _constant(r, "sum_of", tuple(biases), node)


def _constant(r: Rewriter, name: str, args: tuple[Any, ...], node: Node) -> Ref:
    """Write a value for each channel of a node's result, made of weights alone."""
    channels = node.meta.shape[1]
    assert isinstance(channels, int)
    wide = torch.promote_types(node.meta.dtype, torch.float32)
    return r.emit_fused(name, args, Meta((channels,), wide), node.module)
