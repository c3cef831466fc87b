"""The nearest code of a table, see ``passes.nearest_code``."""

from __future__ import annotations

from tvae.pipeline.engine.ir.graph import Node
from tvae.pipeline.engine.ir.nearest import nearest_code_bytes
from tvae.pipeline.engine.ir.program import Op
from tvae.pipeline.engine.rules.context import Context
from tvae.pipeline.engine.rules.registry import NoRule, rule


@rule("nearest_code")
def nearest_code(ctx: Context, node: Node) -> Op:
    """Every vector for itself; the table is there whole."""
    source, codes = ctx.op(node.args[0]), ctx.op(node.args[1])
    if source.axis is None or codes.axis is not None or source.axis.dim != 0:
        raise NoRule("it needs rows in the first dimension of its vectors, and none in its codes")
    apiece, (count, channels) = source.axis.outer * source.axis.inner, codes.shape

    def taken(rows: int) -> int:
        return nearest_code_bytes(rows * apiece, channels, count)

    return ctx.local(node, source.axis, workspace=taken, work=2.0 * source.shape[0] * channels * count)
