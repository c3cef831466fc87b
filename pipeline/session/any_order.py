"""Operations that may give other bits every time, even for the same tensors: with ``bitwise`` they are refused."""

from __future__ import annotations

from tvae.pipeline.engine.ir.graph import Graph
from tvae.pipeline.errors import UsageError, in_module

__all__ = ["check_order"]

_ANYWHERE = frozenset({"index_add", "index_put", "index_reduce", "put", "scatter_add", "scatter_reduce"})
"""Threads add to the same elements in the order in which they come to them. ``index_put``: where it adds."""
_ON_GPUS = frozenset({"bincount", "cumsum", "histc", "kthvalue", "median"})
"""PyTorch lists these (``torch.use_deterministic_algorithms``)."""
_KINDS = ("cpu", "cuda")
"""Kinds of devices of which the rest is known."""


def check_order(graph: Graph, kind: str) -> None:
    """Raises UsageError where an operation of the graph may add in any order on a device of this kind."""
    if kind not in _KINDS:
        raise UsageError(f"bitwise (--bitwise) is for CPUs and NVIDIA GPUs, not for devices of kind '{kind}'")
    for node in graph.nodes:
        added = node.op != "index_put" or any(node.args[3:]) or bool(node.kwargs.get("accumulate"))
        if node.kind == "call" and ((node.op in _ANYWHERE and added) or (kind == "cuda" and node.op in _ON_GPUS)):
            raise UsageError(
                f"operation '{node.target}' {in_module(node.module)} may give other bits every time on a device of "
                f"kind '{kind}'; leave bitwise (--bitwise) out"
            )
