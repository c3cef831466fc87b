"""Which convolutions keep the size of a picture: what the kernels for convolutions take."""

from __future__ import annotations

from typing import Any

from tvae.pipeline.engine.ir.graph import Node
from tvae.pipeline.engine.passes.rewriter import Rewriter

__all__ = ["same_size"]


def same_size(r: Rewriter, node: Node) -> tuple[int, int, int] | None:
    """(channels out, channels in, kernel) of a convolution of stride 1 that keeps the size."""
    weight = r.node(node.args[1])
    if weight is None or node.kwargs:
        return None
    sizes = [n for n in weight.meta.shape if isinstance(n, int)]
    stride, padding, dilation, groups = [*node.args[3:], *[None] * 4][:4]
    if len(sizes) != 4 or sizes[2] != sizes[3] or sizes[2] % 2 == 0:
        return None
    out, inner, kernel, _ = sizes
    ones = all(_is(v, 1) for v in (stride, dilation, groups))
    same = padding == "same" or _is(padding, kernel // 2, nothing=0)
    return (out, inner, kernel) if ones and same else None


def _is(value: Any, wanted: Any, nothing: int = 1) -> bool:
    """Is this option, in any of its spellings, the same number for both dimensions?"""
    if value is None:
        return bool(nothing == wanted)
    return set(value) == {wanted} if isinstance(value, (list, tuple)) else bool(value == wanted)
