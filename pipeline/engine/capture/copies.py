"""Is what an exported operation gives a copy, where it might have been a view? Memory tells in the model itself; an
exporter that remembers shapes has none to tell, and strides say it as well."""

from __future__ import annotations

from typing import Any

import torch

from tvae.pipeline.engine.ir.op_facts import VIEWS, Memory

__all__ = ["is_copy"]


def is_copy(name: str, node: Any) -> bool:
    """name: without namespace and overload. node: the exporter's."""
    view = VIEWS.get(name)
    if view is None or view.memory is Memory.SAME:
        return False
    result, operand = node.meta["val"], node.args[0].meta["val"]
    if view.memory is Memory.UNCHANGED:
        alike = result.dtype == operand.dtype and _numbers(result.stride()) == _numbers(operand.stride())
        return not alike or _asks_for_a_copy(node)
    try:
        there = torch.empty_strided(_numbers(operand.shape), _numbers(operand.stride()), device="meta")
        there.view(_numbers(result.shape))
    except RuntimeError:
        return True
    return False


def _asks_for_a_copy(node: Any) -> bool:
    """``to(x, dtype, non_blocking, copy)``, ``to(x, device, dtype, non_blocking, copy)``."""
    if "copy" in node.kwargs:
        return bool(node.kwargs["copy"])
    at = 4 if getattr(node.target, "_overloadname", "") == "device" else 3
    return len(node.args) > at and node.args[at] is True


def _numbers(sizes: Any) -> list[int]:
    return [n.node.hint if isinstance(n, torch.SymInt) else n for n in sizes]
