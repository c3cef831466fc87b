"""Regions of a model under other settings (``torch.autocast``, gradients on or off), which the exporter puts into
graphs of their own: they are written in line, with the casts that their operations make."""

from __future__ import annotations

import operator
from typing import Any

import torch

from tvae.pipeline.engine.capture.precision import Precision, write_casts
from tvae.pipeline.errors import UnsupportedOp

__all__ = ["in_line"]

_REGIONS = {"wrap_with_autocast": 4, "wrap_with_set_grad_enabled": 1}
"""The exporter's name of such a region, and how many settings it has before its graph."""


def in_line(owner: Any, device: torch.device, precision: Precision | None = None) -> None:
    """Write the regions of a graph module in line, those inside of others first.

    precision: in which the graph itself computes, if ``torch.autocast`` says so. Raises UnsupportedOp where the casts
    of a region cannot be told: of an operation, or of all of a model whose weights are not loaded.
    """
    graph = owner.graph
    if precision is not None:
        write_casts(graph, precision)
    for node in list(graph.nodes):
        settings = _REGIONS.get(getattr(node.target, "__name__", "")) if node.op == "call_function" else None
        if settings is None:
            continue
        region, operands = node.args[settings], node.args[settings + 1 :]
        inner = getattr(owner, region.target)
        in_line(inner, device, precision if settings == 1 else _precision(node, inner, device, precision))
        _replace(graph, node, inner.graph, operands)
        graph.erase_node(node)
        if not region.users:
            graph.erase_node(region)


def _precision(node: Any, inner: Any, device: torch.device, around: Precision | None) -> Precision | None:
    """That of a region under ``torch.autocast``; the one around it where it is for another kind of device."""
    found = Precision(node.args[0], node.args[1])
    if device.type == "meta" and node.args[2]:
        why = f"it computes a part in {found} precision (torch.autocast), whose casts depend on where the weights are"
        raise UnsupportedOp("torch.autocast", _module_in(inner), why, whole=False)
    if device.type != found.device:
        return around
    return found if node.args[2] else None


def _replace(graph: Any, node: Any, inner: Any, operands: Any) -> None:
    """Readers of the region read copies of its nodes."""
    given, copies = iter(operands), dict[Any, Any]()
    results: Any = ()
    with graph.inserting_before(node):
        for each in inner.nodes:
            if each.op == "placeholder":
                copies[each] = next(given)
            elif each.op == "output":
                results = torch.fx.map_arg(each.args[0], lambda n: copies[n])
            else:
                copies[each] = graph.node_copy(each, lambda n: copies[n])
    for user in list(node.users):
        if user.target is operator.getitem:
            user.replace_all_uses_with(results[user.args[1]])
            graph.erase_node(user)
    if node.users:
        node.replace_all_uses_with(results)


def _module_in(inner: Any) -> str:
    """The first module that it computes in."""
    stacks = (list((n.meta.get("nn_module_stack") or {}).values()) for n in inner.graph.nodes)
    paths = [str(stack[-1][0]) for stack in stacks if stack]
    return paths[0].removeprefix("model").lstrip(".") if paths else ""
