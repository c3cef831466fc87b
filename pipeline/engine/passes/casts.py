"""Pass: a cast to a wider type and back, around operations that only move values, is removed."""

from __future__ import annotations

from dataclasses import replace

import torch

from tvae.pipeline.engine.ir.graph import Graph, Meta, Node
from tvae.pipeline.engine.ir.op_facts import CASTS, NEAREST
from tvae.pipeline.engine.passes.rewriter import Rewriter

__all__ = ["drop_casts"]


def drop_casts(graph: Graph) -> Graph:
    """to(float32), nearest upsampling and the cast back -> the upsampling: the same bits, in half of the bytes."""
    r = Rewriter(graph)
    for id_, node in enumerate(r.graph.nodes):
        move = r.node(node.args[0]) if _is_cast(node) and r.read_once(node.args[0]) else None
        widened = r.node(move.args[0]) if move is not None and move.op in NEAREST else None
        source = r.node(widened.args[0]) if widened is not None and _is_cast(widened) else None
        if move is None or widened is None or source is None or not _narrows(source, widened, node):
            r.keep(id_)
            continue
        args = r.renamed((widened.args[0], *move.args[1:]))
        same = Meta(move.meta.shape, node.meta.dtype)
        r.stand_in(id_, r.emit(replace(move, args=args, kwargs=r.renamed(move.kwargs), outputs=(same,))))
    return r.done()


def _is_cast(node: Node) -> bool:
    return node.kind == "call" and node.op in CASTS and "memory_format" not in node.kwargs


def _narrows(source: Node, widened: Node, back: Node) -> bool:
    """Is the type in between one that holds every value of the types around it?"""
    around, between = source.meta.dtype, widened.meta.dtype
    return around == back.meta.dtype != between and torch.promote_types(around, between) == between
