"""Norms over the last dimensions: each row for itself, or, where rows are among them, by statistics of all rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tvae.pipeline.engine.ir.graph import Node
from tvae.pipeline.engine.ir.program import Op
from tvae.pipeline.engine.rules.context import Context
from tvae.pipeline.engine.rules.reduce import Finish, Fold, by_statistics, spread
from tvae.pipeline.engine.rules.registry import NoRule, rule


@rule("layer_norm", "rms_norm")
def trailing_norm(ctx: Context, node: Node) -> Op:
    """Normalises the trailing dimensions given by its second argument."""
    source, over = ctx.op(node.args[0]), len(node.args[1])
    if source.axis is None:
        raise NoRule("its weights have rows, and what it normalises has none")
    if source.axis.dim < len(source.shape) - over:
        return ctx.local(node, source.axis)
    return _over_rows(ctx, node, source, list(range(len(source.shape) - over, len(source.shape))))


def _over_rows(ctx: Context, node: Node, source: Op, dims: list[int]) -> Op:
    centred = node.op == "layer_norm"
    named = ("weight", "bias", "eps") if centred else ("weight", "eps")
    given = dict(zip(named, node.args[2:], strict=False)) | node.kwargs
    if given.get("weight") is not None or given.get("bias") is not None:
        raise NoRule("its weights have rows")
    eps = given.get("eps")
    if eps is None:
        eps = 1e-5 if centred else torch.finfo(torch.promote_types(node.meta.dtype, torch.float32)).eps

    def scaled(rows: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
        return (rows - mean) * scale if centred else rows * scale

    statistics = _statistics(source, dims, float(eps), centred=centred)
    return by_statistics(ctx, node, source, dims, "norm_stats", statistics, scaled)


def _statistics(source: Op, dims: list[int], eps: float, *, centred: bool) -> tuple[Fold, Finish]:
    """Mean (if the norm takes one off) and what to multiply by, one after the other in a new dimension."""
    fold, variance = spread(source, dims, True, 0.0, root=False)

    def finish(acc: Any) -> Tensor:
        _, mean, _ = acc
        squares = variance(acc) + (0.0 if centred else mean.square())
        return torch.stack([mean, (squares + eps).rsqrt()])

    return fold, finish
