"""Pass: a convolution's bias is left out where what reads the result can add it for nothing.

On a GPU PyTorch adds it in a pass of its own over the whole map. A normalisation takes it as an offset of its
statistics, or of the pixels that it measures; a residual sum adds it on its way; where several read the result, the
sum without residual does, and takes the statistics for the normalisation among them.
"""

from __future__ import annotations

import torch

from tvae.pipeline.engine.graph import Graph, Meta, Node, Ref
from tvae.pipeline.engine.passes.rewriter import Rewriter

__all__ = ["move_bias"]

_CONVOLUTIONS = ("conv1d", "conv2d", "conv3d")
_TAKES = {"norm_act": 5, "rms_norm_act": 6, "residual": 2}
"""What adds a bias on its way, and the place among its arguments; taken where one is there already."""


def move_bias(graph: Graph) -> Graph:
    """Move biases of convolutions into ``tvae.norm_act``, ``tvae.rms_norm_act`` and ``tvae.residual``."""
    r = Rewriter(graph)
    moved: dict[int, Ref] = {}  # convolution -> its bias, in new Refs
    for id_, node in enumerate(r.graph.nodes):
        if _has_bias(node) and (reader := _reader(r, id_)):
            bare = (*node.args[:2], None, *node.args[3:])
            plain = r.keep(id_, args=bare)
            bias = r.renamed(node.args[2])
            if reader == "one":
                moved[id_] = bias
            else:
                r.stand_in(id_, r.emit_fused("residual", (plain, None, bias), node.meta, node.module))
        elif node.op == "norm_act" and node.args[0].id in moved:
            x, groups, weight, bias, eps, _, act = node.args
            r.replace(id_, "norm_act", *r.renamed((x, groups, weight, bias, eps)), moved[x.id], act)
        elif node.op == "rms_norm_act" and node.args[0].id in moved:
            r.replace(id_, "rms_norm_act", *r.renamed(node.args[:6]), moved[node.args[0].id])
        elif node.op == "residual" and node.args[2] is None:
            x, other, _ = node.args
            biases = [moved[t.id] for t in (x, other) if isinstance(t, Ref) and t.id in moved]
            r.replace(id_, "residual", *r.renamed((x, other)), _total(r, biases, node))
        else:
            r.keep(id_)
    return r.done()


def _has_bias(node: Node) -> bool:
    return node.op in _CONVOLUTIONS and len(node.args) > 2 and isinstance(node.args[2], Ref)


def _reader(r: Rewriter, id_: int) -> str | None:
    """``one`` reader that takes the bias, ``many`` with a normalisation among them, or None."""
    ids = r.readers(id_)
    ops = [r.graph.nodes[i].op if i >= 0 else "output" for i in ids]
    if len(ids) == 1:
        free = ops[0] in _TAKES and r.graph.nodes[ids[0]].args[_TAKES[ops[0]]] is None
        return "one" if free else None
    return "many" if "norm_act" in ops else None


def _total(r: Rewriter, biases: list[Ref], node: Node) -> Ref | None:
    if len(biases) < 2:
        return biases[0] if biases else None
    meta = Meta((node.meta.shape[1],), torch.promote_types(node.meta.dtype, torch.float32))
    return r.emit_fused("sum_of", tuple(biases), meta, node.module)
