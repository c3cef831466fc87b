"""Pass: the sum of a convolution and what goes around it becomes one operation that can take statistics on its way."""

from __future__ import annotations

from tvae.pipeline.engine.ir.graph import Graph, Node
from tvae.pipeline.engine.ir.op_facts import CONVOLUTIONS
from tvae.pipeline.engine.passes.rewriter import Rewriter

__all__ = ["fuse_residual"]


def fuse_residual(graph: Graph) -> Graph:
    """add(x, y) of a convolution's result, or read by a normalisation -> ``tvae.residual(x, y, None)``."""
    r = Rewriter(graph)
    for id_, node in enumerate(r.graph.nodes):
        if not _plain_sum(r, node):
            r.keep(id_)
            continue
        x, y = node.args[:2]
        ours = [_is_convolution(r.node(t)) and r.read_once(t) for t in (x, y)]
        normed = any(i >= 0 and r.graph.nodes[i].op == "norm_act" for i in r.readers(id_))
        if not any(ours) and not normed:
            r.keep(id_)
            continue
        first, second = (x, y) if ours[0] else (y, x)
        r.replace(id_, "residual", *r.renamed((first, second)), None)
    return r.done()


def _plain_sum(r: Rewriter, node: Node) -> bool:
    if node.target != "aten.add.Tensor" or node.kwargs or len(node.args) != 2:
        return False
    x, y = (r.node(a) for a in node.args)
    return x is not None and y is not None and x.meta == y.meta == node.meta and len(node.meta.shape) > 2


def _is_convolution(node: Node | None) -> bool:
    return node is not None and node.op in CONVOLUTIONS
