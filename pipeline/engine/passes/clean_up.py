"""Passes that remove operations which change nothing, so that they cost no pass over memory: identities, and a cast to
a wider type and back around operations that only move values."""

from __future__ import annotations

import sys
from dataclasses import replace

import torch

from tvae.pipeline.engine.ir.graph import Graph, Meta, Node, Ref, map_refs
from tvae.pipeline.engine.ir.op_facts import CASTS, NEAREST, VIEWS, Elements, View
from tvae.pipeline.engine.passes.rewriter import Rewriter

_ITSELF = View(Elements.ALL)


def _changes_nothing(node: Node, graph: Graph) -> bool:
    source = graph.nodes[node.args[0].id]
    if VIEWS.get(node.op) == _ITSELF or node.op == "lift_fresh_copy":
        return True
    if node.op == "dropout":  # captured in evaluation mode: dropout(x, p, train=False)
        return not node.args[2] or node.args[1] == 0
    if "rounding_mode" in node.kwargs:
        return False
    if node.op in ("div", "mul"):  # diffusers' output_scale_factor of 1.0
        return node.args[1] in (1, 1.0) and not isinstance(node.args[1], bool) and _same_meta(node, source)
    if node.op in ("add", "sub"):
        return node.args[1] in (0, 0.0) and not isinstance(node.args[1], bool) and _same_meta(node, source)
    if node.op in ("pad", "constant_pad_nd"):
        return all(type(amount) is int and amount == 0 for amount in node.args[1])
    if node.op == "slice":  # what indexing with ":" makes of a dimension whose size is a symbol
        return _from_start_to_end(*node.args[2:]) and not node.kwargs
    if node.op in CASTS:
        return _same_meta(node, source) and "memory_format" not in node.kwargs
    return False


def _from_start_to_end(start: object = None, end: object = None, step: object = 1) -> bool:
    return start in (None, 0) and end in (None, sys.maxsize) and step == 1


def _same_meta(node: Node, source: Node) -> bool:
    return node.meta == source.meta and not node.is_tuple and not source.is_tuple


def _only_nonempty(node: Node, graph: Graph) -> Ref | None:
    """Return the only operand of a concatenation that has elements, if there is a single one."""
    if node.op not in ("cat", "concat", "concatenate") or not isinstance(node.args[0], (list, tuple)):
        return None
    dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
    if not isinstance(dim, int):
        return None
    shapes = [graph.nodes[piece.id].meta.shape for piece in node.args[0]]
    pieces = [piece for piece, shape in zip(node.args[0], shapes, strict=True) if shape[dim] != 0]
    single = len(pieces) == 1 and _same_meta(node, graph.nodes[pieces[0].id])
    return pieces[0] if single else None


def remove_identities(graph: Graph) -> Graph:
    """Let readers of an identity read its operand. Node ids stay as they are; the skipped nodes become dead."""
    replaced_by: dict[int, int] = {}
    nodes: list[Node] = []

    def through(arg: object) -> object:
        return Ref(replaced_by.get(arg.id, arg.id)) if isinstance(arg, Ref) else arg

    for id_, node in enumerate(graph.nodes):
        args, kwargs = map_refs((node.args, node.kwargs), through)
        node = replace(node, args=args, kwargs=kwargs)
        nodes.append(node)
        operand = node.args[0] if node.kind == "call" and node.args else None
        if isinstance(operand, Ref):
            operand_ref = operand if _changes_nothing(node, graph) else None
        else:
            operand_ref = None if operand is None else _only_nonempty(node, graph)
        if operand_ref is not None:
            replaced_by[id_] = operand_ref.id
    return replace(graph, nodes=nodes, outputs=[replaced_by.get(i, i) for i in graph.outputs])


def drop_casts(graph: Graph) -> Graph:
    """to(float32), nearest upsampling and the cast back -> the upsampling: the same bits, in half of the bytes."""
    r = Rewriter(graph)
    for id_, node in r.nodes():
        move = r.node(node.args[0]) if _is_cast(node) and r.read_once(node.args[0]) else None
        widened = r.node(move.args[0]) if move is not None and move.op in NEAREST else None
        source = r.node(widened.args[0]) if widened is not None and _is_cast(widened) else None
        if move is None or widened is None or source is None or not _narrows(source, widened, node):
            continue
        args = r.renamed((widened.args[0], *move.args[1:]))
        meta = Meta(move.meta.shape, node.meta.dtype)
        r.substitute(id_, replace(move, args=args, kwargs=r.renamed(move.kwargs), outputs=(meta,)))
    return r.done()


def _is_cast(node: Node) -> bool:
    return node.kind == "call" and node.op in CASTS and "memory_format" not in node.kwargs


def _narrows(source: Node, widened: Node, back: Node) -> bool:
    """True if the type in between holds every value of the types around it."""
    around, between = source.meta.dtype, widened.meta.dtype
    return around == back.meta.dtype != between and torch.promote_types(around, between) == between
