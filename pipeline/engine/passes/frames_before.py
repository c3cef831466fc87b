"""Pass: a normalised clip is written right after the cached frames that the next convolution sees before it.

A causal convolution over time reads ``cat([cache, x], 2)``, and the next cache is cut from the same frames. Where x is
the result of ``tvae.rms_norm_act``, that operation makes the joined clip itself, and the next cache is a copy of some
of its frames: x is neither stored alone nor copied.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from tvae.pipeline.engine.ir.graph import Graph, Meta, Node, Ref
from tvae.pipeline.engine.passes.rewriter import Rewriter

__all__ = ["join_frames_before"]

_FRAMES = 2
"""The dimension of a clip's frames."""


@dataclass(frozen=True)
class _Span:
    """Frames [lo, hi) of a joined clip (a node of the new graph)."""

    joined: Ref
    lo: int
    hi: int

    def part(self, lo: int, hi: int) -> _Span:
        """Frames [lo, hi) of these."""
        return _Span(self.joined, self.lo + lo, self.lo + hi)


def join_frames_before(graph: Graph) -> Graph:
    """cat([before, rms_norm_act(x)], 2) -> rms_norm_act(x, before), and what else holds its frames reads them there."""
    r = Rewriter(graph)
    spans: dict[int, _Span] = {}
    gone: set[int] = set()
    for id_, node in enumerate(r.graph.nodes):
        join = _join_of(r, id_)
        if join is not None:
            before = r.graph.nodes[join].args[0][0]
            args = (*node.args, *[None] * (7 - len(node.args)), before)
            meta = r.graph.nodes[join].meta
            joined = r.emit_fused("rms_norm_act", tuple(r.renamed(args)), meta, node.module)
            whole = _Span(joined, 0, _frames(meta))
            first = _frames(r.graph.nodes[before.id].meta)
            spans |= {before.id: whole.part(0, first), id_: whole.part(first, whole.hi), join: whole}
            gone.add(id_)
        elif id_ in spans and node.op == "cat":
            r.stand_in(id_, spans[id_].joined)
        else:
            span = _span(r, node, spans)
            if span is not None:
                spans[id_] = span
            if span is not None and node.op == "cat":
                r.stand_in(id_, r.emit(_call("clone", (_cut(r, span, node),), node)))
            elif span is not None and node.args[0].id in gone:
                r.stand_in(id_, _cut(r, span, node))
            else:
                r.keep(id_)
    return r.done()


def _join_of(r: Rewriter, id_: int) -> int | None:
    """The node that joins a normalisation's result after other frames, where all that reads it can read that."""
    node = r.graph.nodes[id_]
    readers = r.readers(id_)
    if node.op != "rms_norm_act" or len(node.meta.shape) != 5 or len(node.args) > 7 or -1 in readers:
        return None
    joins, frames = [i for i in readers if r.graph.nodes[i].op == "cat"], node.meta.shape[_FRAMES]
    if len(joins) != 1 or not isinstance(frames, int):
        return None
    if any(_sliced(r.graph.nodes[i], frames) is None for i in readers if i != joins[0]):
        return None
    join = r.graph.nodes[joins[0]]
    if not _joins_frames(join) or len(join.args[0]) != 2:
        return None
    before, behind = join.args[0]
    first = r.graph.nodes[before.id].meta
    alike = first.dtype == node.meta.dtype and isinstance(first.shape[_FRAMES], int)
    return joins[0] if alike and behind.id == id_ and before.id < id_ else None


def _span(r: Rewriter, node: Node, spans: dict[int, _Span]) -> _Span | None:
    """The frames of a joined clip that a node's value is, if it is some."""
    if node.op == "cat":
        return _united([spans.get(piece.id) for piece in node.args[0]]) if _joins_frames(node) else None
    source = node.args[0] if node.kind == "call" and node.args else None
    if not isinstance(source, Ref):
        return None
    if node.op == "unsqueeze":  # of a single frame
        select = r.graph.nodes[source.id]
        of = spans.get(select.args[0].id) if select.op == "select" else None
        if of is None or node.args[1] != _FRAMES or select.args[1] != _FRAMES:
            return None
        frame = range(of.hi - of.lo)[select.args[2]]
        return of.part(frame, frame + 1)
    of = spans.get(source.id)
    if of is None or node.kwargs:
        return None
    if node.op in ("clone", "contiguous"):
        return of
    cut = _sliced(node, of.hi - of.lo)
    return None if cut is None else of.part(*cut)


def _joins_frames(cat: Node) -> bool:
    """Does it join clips one after the other?"""
    dim = cat.args[1] if len(cat.args) > 1 else cat.kwargs.get("dim", 0)
    return dim in (_FRAMES, _FRAMES - len(cat.meta.shape))


def _united(found: list[_Span | None]) -> _Span | None:
    """Spans that follow each other in one clip."""
    spans = [span for span in found if span is not None]
    follow = all(a.joined == b.joined and a.hi == b.lo for a, b in pairwise(spans))
    return _Span(spans[0].joined, spans[0].lo, spans[-1].hi) if spans and follow and len(spans) == len(found) else None


def _sliced(node: Node, frames: int) -> tuple[int, int] | None:
    """Which of its operand's frames a node takes, one after the other; None where it does something else."""
    if node.op != "slice" or node.kwargs or len(node.args) < 2 or node.args[1] != _FRAMES:
        return None
    given = dict(zip(("start", "stop", "step"), node.args[2:], strict=False))
    start, stop = given.get("start"), given.get("stop")
    if given.get("step", 1) != 1 or not all(v is None or isinstance(v, int) for v in (start, stop)):
        return None
    lo, hi, _ = slice(start, stop).indices(frames)
    return (lo, hi) if lo < hi else None


def _cut(r: Rewriter, span: _Span, node: Node) -> Ref:
    return r.emit(_call("slice.Tensor", (span.joined, _FRAMES, span.lo, span.hi), node))


def _call(op: str, args: tuple[object, ...], node: Node) -> Node:
    target = op if "." in op else f"{op}.default"
    return Node("call", f"aten.{target}", args, {}, node.module, (Meta(node.meta.shape, node.meta.dtype),))


def _frames(meta: Meta) -> int:
    frames = meta.shape[_FRAMES]
    assert isinstance(frames, int)
    return frames
