"""Pass: convolutions between a picture of a few channels and a map of many become operations of their own.

Libraries fill the few up to a tile of many: at both ends of a decoder and an encoder, where the maps are largest, they
compute mostly zeros. The last normalisation and its activation join the convolution that reads them.
"""

from __future__ import annotations

from tvae.pipeline.engine.ir.graph import Graph, Node
from tvae.pipeline.engine.passes.rewriter import Rewriter
from tvae.pipeline.engine.passes.same_size import same_size

__all__ = ["fuse_narrow_conv"]

_MOST_FROM, _MOST_TO = 64, 128
"""Taps times channels of the few: what the kernels take."""
_MANY = 32
"""Channels of the other side from which on it pays."""


def fuse_narrow_conv(graph: Graph) -> Graph:
    """conv2d of a few channels -> ``tvae.conv_from_few``; to a few of a norm -> ``tvae.conv_to_few``."""
    r = Rewriter(graph)
    for id_, node in enumerate(r.graph.nodes):
        sizes = same_size(r, node) if node.op == "conv2d" else None
        if sizes is None:
            r.keep(id_)
            continue
        out, inner, kernel = sizes
        norm, bias = r.node(node.args[0]), r.renamed(node.args[2]) if len(node.args) > 2 else None
        weight = r.renamed(node.args[1])
        if _few_inside(inner * kernel * kernel, out):
            r.replace(id_, "conv_from_few", r.renamed(node.args[0]), weight, bias)
        elif out * kernel * kernel <= _MOST_TO and inner >= _MANY and _joins(r, node, norm):
            assert norm is not None
            r.replace(id_, "conv_to_few", *r.renamed(norm.args), weight, bias)
        else:
            r.keep(id_)
    return r.done()


def _few_inside(products: int, out: int) -> bool:
    return products <= _MOST_FROM and out >= _MANY


def _joins(r: Rewriter, node: Node, norm: Node | None) -> bool:
    return norm is not None and norm.op == "norm_act" and r.read_once(node.args[0])
