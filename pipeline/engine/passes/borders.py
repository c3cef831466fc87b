"""Pass: borders of zeros that a convolution can add by itself are left to it; others are made where a norm is computed.

A padded copy of a map costs a read and a write of all of it. Convolutions take zeros on both sides of a dimension for
nothing. Where they are on one side only, and the convolution takes steps, it takes the same on both, and what those see
is dropped. Borders of another kind come for nothing where the map in front is written anyway.
"""

from __future__ import annotations

import math
from typing import Any

from tvae.pipeline.engine.ir.fused_ops import even_zeros
from tvae.pipeline.engine.ir.graph import Graph, Meta, Node
from tvae.pipeline.engine.ir.op_facts import PLAIN_CONVOLUTIONS
from tvae.pipeline.engine.passes.rewriter import Rewriter

__all__ = ["fuse_norm_pad", "leave_zeros_to_convolutions", "pads_zeros"]

_DEFAULTS: tuple[Any, ...] = (None, 1, 0, 1, 1)
"""Of a convolution's bias, stride, padding, dilation and groups."""


def leave_zeros_to_convolutions(graph: Graph) -> Graph:
    """pad with zeros and a convolution -> the convolution's own padding, where they are alike on both sides of a
    dimension; ``tvae.uneven_conv`` where they are not, and the convolution takes steps."""
    r = Rewriter(graph)
    for id_, node in enumerate(r.graph.nodes):
        pad = r.node(node.args[0]) if node.op in PLAIN_CONVOLUTIONS and r.read_once(node.args[0]) else None
        found = _split(r, pad, node) if pad is not None and pads_zeros(pad) else None
        if pad is None or found is None:
            r.keep(id_)
            continue
        rest, own, before, after = found
        x = r.renamed((pad.args[0],))[0]
        bias, stride, _, dilation, groups = [*node.args[2:], *_DEFAULTS[len(node.args) - 2 :]]
        stride, dilation = ([v] * len(own) if isinstance(v, int) else v for v in (stride, dilation))  # calls want lists
        if any(rest) and _takes_uneven(r, node, stride, dilation, groups, before, after):
            weight, bias = r.renamed((node.args[1], bias))
            r.replace(id_, "uneven_conv", x, weight, bias, stride, before, after, dilation, groups)
            continue
        if rest == list(pad.args[1]):
            r.keep(id_)
            continue
        if any(rest):
            x = r.emit(Node("call", pad.target, (x, rest), {}, pad.module, (_without(r, pad, rest),)))
        args = (x, *r.renamed((node.args[1], bias)), stride, own, dilation, groups)
        new = Node("call", node.target, args, {}, node.module, node.outputs)
        r.stand_in(id_, r.emit(new))
    return r.done()


def fuse_norm_pad(graph: Graph) -> Graph:
    """``tvae.norm_act`` and a pad that alone reads it -> ``tvae.norm_pad``."""
    r = Rewriter(graph)
    for id_, node in enumerate(r.graph.nodes):
        norm = r.node(node.args[0]) if node.op == "pad" and r.read_once(node.args[0]) else None
        if norm is None or norm.op != "norm_act" or len(norm.meta.shape) < 4 or not _is_spread(node):
            r.keep(id_)
            continue
        mode = node.args[2] if len(node.args) > 2 else node.kwargs.get("mode", "constant")
        r.replace(id_, "norm_pad", *r.renamed(norm.args), list(node.args[1]), mode, module=norm.module)
    return r.done()


def pads_zeros(node: Node) -> bool:
    """Is this a padding with zeros, by amounts that are numbers?"""
    if node.op not in ("pad", "constant_pad_nd"):
        return False
    mode = (node.args[2] if len(node.args) > 2 else node.kwargs.get("mode", "constant")) if node.op == "pad" else ""
    at = 3 if node.op == "pad" else 2
    fill = node.args[at] if len(node.args) > at else node.kwargs.get("value")
    return mode in ("constant", "") and not fill and all(type(n) is int and n >= 0 for n in node.args[1])


def _split(r: Rewriter, pad: Node, conv: Node) -> tuple[list[int], list[int], list[int], list[int]] | None:
    """(what is left to pad, the convolution's padding; all zeros before and after each dimension), None where they
    are not known."""
    dims, weight = PLAIN_CONVOLUTIONS[conv.op], r.node(conv.args[1])
    padding, dilation = conv.args[4] if len(conv.args) > 4 else 0, conv.args[5] if len(conv.args) > 5 else 1
    amounts = list(pad.args[1])
    if isinstance(padding, str) or conv.kwargs or len(conv.meta.shape) != dims + 2 or len(amounts) > 2 * dims:
        return None
    assert weight is not None
    own, step = ([v] * dims if isinstance(v, int) else list(v) * (dims // len(v)) for v in (padding, dilation))
    rest, before, after = list(amounts), list(own), list(own)
    for j in range(0, len(amounts), 2):
        at = dims - 1 - j // 2
        kernel = weight.meta.shape[2 + at]
        reach = (kernel - 1) * step[at] if isinstance(kernel, int) else 0
        before[at], after[at] = own[at] + amounts[j], own[at] + amounts[j + 1]
        if 0 < amounts[j] == amounts[j + 1] <= reach and own[at] == 0:
            own[at], rest[j], rest[j + 1] = amounts[j], 0, 0
    return rest, own, before, after


def _takes_uneven(
    r: Rewriter, conv: Node, stride: list[int], dilation: list[int], groups: int, before: list[int], after: list[int]
) -> bool:
    """Can a convolution of pictures see to all of these zeros by a padding of its own, for a result that is at most
    half of a padded copy? Of clips, ``zero_frames`` leaves them out."""
    weight = r.node(conv.args[1])
    assert weight is not None
    outer, inner, *kernel = weight.meta.shape
    if conv.op != "conv2d" or not isinstance(outer, int) or not isinstance(inner, int):
        return False
    each = zip(kernel, dilation, even_zeros(before, after, stride), strict=True)
    reached = all(isinstance(k, int) and zeros <= (k - 1) * gap for k, gap, zeros in each)
    return reached and 2 * outer <= inner * groups * math.prod(stride)


def _without(r: Rewriter, pad: Node, rest: list[int]) -> Meta:
    """The pad's result with ``rest`` of its borders, which leaves a dimension all of them or none."""
    source = r.node(pad.args[0])
    assert source is not None
    shape = list(pad.meta.shape)
    for n in range(len(rest) // 2):
        if not any(rest[2 * n : 2 * n + 2]):
            shape[-1 - n] = source.meta.shape[-1 - n]
    return Meta(tuple(shape), pad.meta.dtype)


def _is_spread(node: Node) -> bool:
    """A pad of spatial dimensions, outwards; a constant one with zeros."""
    mode = node.args[2] if len(node.args) > 2 else node.kwargs.get("mode", "constant")
    fill = node.args[3] if len(node.args) > 3 else node.kwargs.get("value")
    outwards = all(type(n) is int and n >= 0 for n in node.args[1]) and len(node.args[1]) <= 6
    return outwards and mode in ("constant", "replicate", "reflect") and not fill
