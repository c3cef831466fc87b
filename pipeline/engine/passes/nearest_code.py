"""Pass: distances to all codes of a table, of which only the smallest counts, become one operation.

The distances, as many as vectors times codes, are then never all there, and they are computed in float64.
"""

from __future__ import annotations

from tvae.pipeline.engine.ir.graph import Graph, Node
from tvae.pipeline.engine.passes.rewriter import Rewriter

__all__ = ["fuse_nearest_code"]

_DISTANCES = ("cdist", "_cdist_forward", "_euclidean_dist")


def fuse_nearest_code(graph: Graph) -> Graph:
    """argmin of the Euclidean distances between vectors [n, C] and codes [m, C] -> ``tvae.nearest_code``."""
    r = Rewriter(graph)
    for id_, node in enumerate(r.graph.nodes):
        distances = r.node(node.args[0]) if _takes_least(node) and r.read_once(node.args[0]) else None
        if distances is None or not _is_plain(distances):
            r.keep(id_)
        else:
            r.replace(id_, "nearest_code", *r.renamed(distances.args[:2]))
    return r.done()


def _takes_least(node: Node) -> bool:
    """For every vector, without a dimension of one in the place of the codes?"""
    how = [*node.args[1:], *node.kwargs.values()]
    return node.kind == "call" and node.op == "argmin" and how[:1] in ([1], [-1]) and not any(how[1:])


def _is_plain(node: Node) -> bool:
    euclidean = node.kind == "call" and node.op in _DISTANCES and (len(node.args) < 3 or node.args[2] == 2)
    return euclidean and not node.kwargs and len(node.meta.shape) == 2
