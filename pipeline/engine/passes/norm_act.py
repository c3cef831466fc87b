"""Pass: group normalisation and the SiLU after it become one operation; a flattening view before it moves after it."""

from __future__ import annotations

from tvae.pipeline.engine.ir.graph import Graph, Node, Ref
from tvae.pipeline.engine.ir.op_facts import is_reshape
from tvae.pipeline.engine.passes.rewriter import Rewriter

__all__ = ["fuse_norm_act"]


def fuse_norm_act(graph: Graph) -> Graph:
    """group_norm and silu -> ``tvae.norm_act``, whose statistics can be taken where the normalised value is made."""
    r = Rewriter(graph)
    for id_, node in enumerate(r.graph.nodes):
        norm = r.node(node.args[0]) if node.op == "silu" else None
        if norm is not None and norm.op == "group_norm" and r.read_once(node.args[0]) and norm.meta == node.meta:
            _write(r, id_, norm, "silu")
        elif node.op == "group_norm":
            _write(r, id_, node, None)
        else:
            r.keep(id_)
    return r.done()


def _write(r: Rewriter, id_: int, norm: Node, act: str | None) -> None:
    x, groups, *rest = norm.args
    weight, bias, eps = [*rest, None, None, None][:3]
    args = (groups, *r.renamed((weight, bias)), 1e-5 if eps is None else eps, None, act)
    source = r.node(x)
    # GroupNorm does not see how the pixels are arranged: normalised before the view, they are where they were made
    if source is not None and is_reshape(source) and isinstance(source.args[0], Ref):
        base = r.node(source.args[0])
        assert base is not None
        if len(base.meta.shape) > 2 and len(source.meta.shape) > 2 and base.meta.shape[:2] == source.meta.shape[:2]:
            normed = r.emit_fused("norm_act", (*r.renamed((source.args[0],)), *args), base.meta, norm.module)
            shape = r.renamed(source.args[1:])
            view = Node("call", source.target, (normed, *shape), source.kwargs, source.module, (source.meta,))
            r.stand_in(id_, r.emit(view))
            return
    r.replace(id_, "norm_act", *r.renamed((x,)), *args, module=norm.module)
