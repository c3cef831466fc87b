"""Passes: nearest 2x upsampling and the 3x3 convolution after it become one transposed convolution of the small
picture; and that becomes one operation with the statistics of its result, where a kernel takes them on the way.

2.25 times fewer operations, the same function in exact arithmetic; the enlarged picture is never written, and the
result is written once, in place.
"""

from __future__ import annotations

from collections.abc import Callable

from tvae.pipeline.engine.ir.graph import Graph, Meta, Node
from tvae.pipeline.engine.ir.op_facts import CASTS, NEAREST
from tvae.pipeline.engine.ir.sizes import Size
from tvae.pipeline.engine.passes.rewriter import Rewriter

__all__ = ["fuse_enlarge_conv", "fuse_upsample_conv"]


def fuse_upsample_conv(graph: Graph) -> Graph:
    """upsample_nearest2d(x, 2) and conv2d 3x3 -> ``aten.conv_transpose2d`` of a ``tvae.subpixel_weight``."""
    r = Rewriter(graph)
    for id_, node in enumerate(r.graph.nodes):
        up = r.node(node.args[0]) if node.op == "conv2d" else None
        if up is None or NEAREST.get(up.op) != 2 or not _doubles(r, up) or not _three_by_three(r, node):
            r.keep(id_)
            continue
        x, weight, bias = up.args[0], node.args[1], node.args[2] if len(node.args) > 2 else None
        stored = r.node(weight)
        assert stored is not None
        out, inner = stored.meta.shape[:2]
        taps = Meta((inner, out, 4, 4), stored.meta.dtype)
        summed = r.emit_fused("subpixel_weight", r.renamed((weight,)), taps, node.module)
        args = (*r.renamed((x,)), summed, r.renamed(bias), [2, 2], [1, 1])
        r.stand_in(id_, r.emit(Node("call", "aten.conv_transpose2d.input", args, {}, node.module, node.outputs)))
    return r.done()


def fuse_enlarge_conv(graph: Graph, takes: Callable[[int, int, int], bool]) -> Graph:
    """conv_transpose2d of a ``tvae.subpixel_weight`` -> ``tvae.enlarge_conv``, for (channels out, channels in, 3) which
    the kernel takes."""
    r = Rewriter(graph)
    for id_, node in enumerate(r.graph.nodes):
        summed = r.node(node.args[1]) if node.op == "conv_transpose2d" else None
        if summed is None or summed.op != "subpixel_weight":
            r.keep(id_)
            continue
        inner, out = summed.meta.shape[:2]
        if not isinstance(inner, int) or not isinstance(out, int) or not takes(out, inner, 3):
            r.keep(id_)
            continue
        meta = Meta((out, inner, 4, 4), summed.meta.dtype)
        taps = r.emit_fused("enlarging_taps", r.renamed((summed.args[0],)), meta, node.module)
        r.replace(id_, "enlarge_conv", r.renamed(node.args[0]), taps, r.renamed(node.args[2]))
    return r.done()


def _doubles(r: Rewriter, up: Node) -> bool:
    """Both sides are doubled, by factors that say so: sizes alone could be equal by chance at one input size."""
    factors = up.args[2] if up.target.endswith(".vec") else up.args[2:4]
    if factors:
        return list(factors) == [2.0, 2.0]
    source = r.node(up.args[0])
    assert source is not None
    return all(_twice(a, b) for a, b in zip(source.meta.shape[-2:], up.meta.shape[-2:], strict=True))


def _twice(small: int | Size, large: int | Size) -> bool:
    if isinstance(small, int) or isinstance(large, int):
        return isinstance(small, int) and isinstance(large, int) and large == 2 * small
    return large.expr in (f"2*{small.expr}", f"2*({small.expr})")


def _three_by_three(r: Rewriter, node: Node) -> bool:
    """A 3x3 convolution of stride 1 and padding 1 over all channels at once. Not one under ``torch.autocast``, whose
    kernel is cast: its sums, which are larger, would be rounded, and the rest of such a model rounds less."""
    weight = r.node(node.args[1])
    if weight is not None and weight.op in CASTS:
        return False
    stride, padding, dilation, groups = [*node.args[3:], *[None] * 4][:4] if len(node.args) > 3 else [None] * 4
    if weight is None or tuple(weight.meta.shape[2:]) != (3, 3) or node.kwargs or (groups or 1) != 1:
        return False
    ones = all(v is None or v == 1 or list(v) == [1] * len(v) for v in (stride, dilation))
    return ones and (padding == 1 or padding == "same" or list(padding or [0]) in ([1], [1, 1]))
