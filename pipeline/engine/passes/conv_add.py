"""Passes: a convolution and the sum after it become one operation, which some libraries compute at once; and so does
a convolution alone, where a kernel takes the statistics of its result on the way.

The result is still in registers when the sum or the statistics are computed: one pass over the map is saved.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvae.pipeline.engine.ir.graph import Graph, Node, Ref
from tvae.pipeline.engine.passes.rewriter import Rewriter
from tvae.pipeline.engine.passes.same_size import same_size

__all__ = ["fuse_conv_add", "fuse_conv_stats"]


def fuse_conv_add(graph: Graph) -> Graph:
    """residual(conv2d(x), y, bias) -> ``tvae.conv_add``, where nothing else reads the convolution's result."""
    r = Rewriter(graph)
    for id_, node in enumerate(r.graph.nodes):
        found = _parts(r, node) if node.op == "residual" and isinstance(node.args[1], Ref) else None
        if found is None:
            r.keep(id_)
        else:
            r.replace(id_, "conv_add", *r.renamed(found))
    return r.done()


def fuse_conv_stats(graph: Graph, takes: Callable[[int, int, int], bool]) -> Graph:
    """conv2d(x) -> ``tvae.conv_add`` that adds nothing but the bias, for (channels out, channels in, kernel) which the
    kernel takes."""
    r = Rewriter(graph)
    for id_, node in enumerate(r.graph.nodes):
        sizes = same_size(r, node) if node.op == "conv2d" else None
        if sizes is None or not takes(*sizes):
            r.keep(id_)
        else:
            x, weight, bias = [*node.args[:3], None][:3]
            r.replace(id_, "conv_add", *r.renamed((x, weight, None, bias)))
    return r.done()


def _parts(r: Rewriter, node: Node) -> tuple[Any, ...] | None:
    """(x, weight, what is added, bias) of a sum of which one side is such a convolution."""
    first, second, bias = node.args
    for ours, other in ((first, second), (second, first)):
        conv = r.node(ours)
        if conv is None or conv.op != "conv2d" or ours == other or not r.read_once(ours):
            continue
        if conv.args[2:3] not in ((), (None,)):
            continue
        sizes = same_size(r, conv)
        if sizes is not None and sizes[2] > 1:  # of a single tap the sum takes longer than the products
            return (*conv.args[:2], other, bias)
    return None
