"""Pass: a 3x3 convolution in steps of two, with a row and a column of zeros at the end of the picture, becomes one
operation with the statistics of its result, where a kernel takes them on the way.

So encoders halve their maps. Libraries pad both ends or copy the map, and choose an algorithm for every new size.
"""

from __future__ import annotations

from collections.abc import Callable

from tvae.pipeline.engine.ir.graph import Graph, Node
from tvae.pipeline.engine.passes.rewriter import Rewriter

__all__ = ["fuse_down_conv"]


def fuse_down_conv(graph: Graph, takes: Callable[[int, int, int], bool]) -> Graph:
    """``tvae.uneven_conv`` -> ``tvae.down_conv``, for (channels out, channels in, 3) which the kernel takes."""
    r = Rewriter(graph)
    for id_, node in enumerate(r.graph.nodes):
        sizes = _halves(r, node) if node.op == "uneven_conv" else None
        if sizes is None or not takes(*sizes):
            r.keep(id_)
        else:
            r.replace(id_, "down_conv", *r.renamed(node.args[:3]))
    return r.done()


def _halves(r: Rewriter, node: Node) -> tuple[int, int, int] | None:
    """(channels out, channels in, 3) of such a convolution of pictures."""
    weight = r.node(node.args[1])
    assert weight is not None
    shape, how = list(weight.meta.shape), [list(part) for part in node.args[3:7]]
    if len(shape) != 4 or shape[2:] != [3, 3] or how != [[2, 2], [0, 0], [1, 1], [1, 1]] or node.args[7] != 1:
        return None
    outer, inner = shape[:2]
    return (outer, inner, 3) if isinstance(outer, int) and isinstance(inner, int) else None
