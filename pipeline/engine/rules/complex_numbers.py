"""Complex numbers out of pairs of numbers and back: rotations by positions are written so."""

from __future__ import annotations

import torch

from tvae.pipeline.engine.ir.graph import Node
from tvae.pipeline.engine.ir.program import Op
from tvae.pipeline.engine.rules.context import Context
from tvae.pipeline.engine.rules.registry import NoRule, rule


@rule("view_as_complex")
def view_as_complex(ctx: Context, node: Node) -> Op:
    """Pairs along the last dimension become numbers."""
    source = ctx.op(node.args[0])
    axis = source.axis
    assert axis is not None
    if axis.dim == len(source.shape) - 1:
        raise NoRule("its rows are the pairs")
    return ctx.local(
        node, axis, cheap=True, run=lambda read, a, b: torch.view_as_complex(read(source.id, a, b).contiguous())
    )


@rule("view_as_real")
def view_as_real(ctx: Context, node: Node) -> Op:
    """Numbers become pairs along a new last dimension."""
    source = ctx.op(node.args[0])
    assert source.axis is not None
    return ctx.local(
        node, source.axis, cheap=True, run=lambda read, a, b: torch.view_as_real(read(source.id, a, b).resolve_conj())
    )
