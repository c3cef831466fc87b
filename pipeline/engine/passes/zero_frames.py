"""Pass: a causal convolution of a clip's first frame does not multiply the zeros before it.

Where zeros stand for what was before a clip, a picture, and a clip's first frame, come as many frames as the kernel has
taps: all taps but those that meet the frame itself are multiplied with zeros.
"""

from __future__ import annotations

from tvae.pipeline.engine.ir.graph import Graph, Meta, Node
from tvae.pipeline.engine.passes.borders import pads_zeros
from tvae.pipeline.engine.passes.rewriter import Rewriter

__all__ = ["leave_out_zero_frames"]


def leave_out_zero_frames(graph: Graph) -> Graph:
    """conv3d of as many frames as it has taps, the first of them zeros -> conv3d of the others, with the last taps."""
    r = Rewriter(graph)
    for id_, node in enumerate(r.graph.nodes):
        pad = r.node(node.args[0]) if node.op == "conv3d" else None
        zeros = _frames_of_zeros(r, node, pad) if pad is not None and pads_zeros(pad) else 0
        if pad is None or not zeros:
            r.keep(id_)
            continue
        weight = r.node(node.args[1])
        assert weight is not None
        outer, inner, taps, *kernel = weight.meta.shape
        assert isinstance(taps, int)
        meta = Meta((outer, inner, taps - zeros, *kernel), weight.meta.dtype)
        last = r.emit_fused("last_taps", (*r.renamed((node.args[1],)), zeros), meta, node.module)
        args = (*r.renamed((pad.args[0],)), last, *r.renamed(node.args[2:]))
        r.stand_in(id_, r.emit(Node("call", node.target, args, {}, node.module, node.outputs)))
    return r.done()


def _frames_of_zeros(r: Rewriter, conv: Node, pad: Node) -> int:
    """How many frames of zeros lie before those of a convolution's only result; 0 for anything else."""
    weight, amounts = r.node(conv.args[1]), list(pad.args[1])
    padding, dilation = ([*conv.args, *[None] * 6][i] for i in (4, 5))
    if weight is None or conv.kwargs or len(conv.meta.shape) != 5 or len(amounts) != 6 or any(amounts[:4]):
        return 0
    before, after = amounts[4:]
    alone = all(v in (None, n) or (isinstance(v, list | tuple) and v[0] == n) for v, n in ((padding, 0), (dilation, 1)))
    frames = pad.meta.shape[2]
    whole = isinstance(frames, int) and frames == weight.meta.shape[2] and before < frames
    return before if alone and whole and not after else 0
