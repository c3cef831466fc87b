"""Values of a map at places that are given for every pixel: warps, deformable windows."""

from __future__ import annotations

from tvae.pipeline.engine.ir.graph import Node
from tvae.pipeline.engine.ir.program import Op
from tvae.pipeline.engine.rules.context import Context
from tvae.pipeline.engine.rules.registry import NoRule, rule


@rule("grid_sampler")
def sampled(ctx: Context, node: Node) -> Op:
    """Rows of the result are those of the places; the map is read whole, for they may lie anywhere in it."""
    source, places = ctx.op(node.args[0]), ctx.op(node.args[1])
    axis, whole = places.axis, () if source.axis is None else (source.id,)
    if axis is None:
        return ctx.whole(node, barrier=True)
    if axis.dim in (0, len(places.shape) - 1):
        raise NoRule("its places have their rows in the batch, or in the coordinates")
    invoke = ctx.call(node)
    return ctx.emit(
        node,
        [source, places],
        axis.moved(axis.dim + 1),
        lambda a, b: [(places.id, a, b)],
        lambda read, a, b: invoke(lambda i: read(i, a, b) if i == places.id else read(i)),
        whole_reads=whole,
    )
