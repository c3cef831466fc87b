"""Pass: convolutions between a picture of a few channels and a map of many become operations of their own.

Libraries fill the few up to a tile of many: at both ends of a decoder and an encoder, where the maps are largest, they
compute mostly zeros. The last normalisation and its activation join the convolution that reads them.
"""

from __future__ import annotations

from typing import Any

from tvae.pipeline.engine.graph import Graph, Node
from tvae.pipeline.engine.passes.rewriter import Rewriter

__all__ = ["fuse_narrow_conv"]

_MOST = 64
"""Taps times channels of the few: what the kernels take."""
_MANY = 32
"""Channels of the other side from which on it pays."""


def fuse_narrow_conv(graph: Graph) -> Graph:
    """conv2d of a few channels -> ``tvae.conv_from_few``; to a few of a norm -> ``tvae.conv_to_few``."""
    r = Rewriter(graph)
    for id_, node in enumerate(graph.nodes):
        sizes = _plain(r, node) if node.op == "conv2d" else None
        if sizes is None:
            r.keep(id_)
            continue
        out, inner, kernel = sizes
        norm, bias = r.node(node.args[0]), r.renamed(node.args[2]) if len(node.args) > 2 else None
        weight = r.renamed(node.args[1])
        if _few_inside(inner * kernel * kernel, out):
            r.replace(id_, "conv_from_few", r.renamed(node.args[0]), weight, bias)
        elif out * kernel * kernel <= _MOST and inner >= _MANY and _joins(r, node, norm):
            assert norm is not None
            r.replace(id_, "conv_to_few", *r.renamed(norm.args), weight, bias)
        else:
            r.keep(id_)
    return r.done()


def _few_inside(products: int, out: int) -> bool:
    return products <= _MOST and out >= _MANY


def _joins(r: Rewriter, node: Node, norm: Node | None) -> bool:
    return norm is not None and norm.op == "norm_act" and r.read_once(node.args[0])


def _plain(r: Rewriter, node: Node) -> tuple[int, int, int] | None:
    """(channels out, channels in, kernel) of a convolution of stride 1 that keeps the size."""
    weight = r.node(node.args[1])
    if weight is None or node.kwargs:
        return None
    sizes = [n for n in weight.meta.shape if isinstance(n, int)]
    stride, padding, dilation, groups = [*node.args[3:], *[None] * 4][:4]
    if len(sizes) != 4 or sizes[2] != sizes[3] or sizes[2] % 2 == 0:
        return None
    out, inner, kernel, _ = sizes
    ones = all(_is(v, 1) for v in (stride, dilation, groups))
    same = padding == "same" or _is(padding, kernel // 2, nothing=0)
    return (out, inner, kernel) if ones and same else None


def _is(value: Any, wanted: Any, nothing: int = 1) -> bool:
    """Is this option, in any of its spellings, the same number for both dimensions?"""
    if value is None:
        return bool(nothing == wanted)
    return set(value) == {wanted} if isinstance(value, (list, tuple)) else bool(value == wanted)
