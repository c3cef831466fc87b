"""Shortcut: a graph in which gradients are off throughout has no regions that say so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tvae.pipeline.engine.capture.in_thread import instead

__all__ = ["plain_regions"]


@contextmanager
def plain_regions() -> Iterator[None]:
    """For graphs exported inside this block, where gradients are off. Does nothing with a release of PyTorch that is
    built otherwise.

    The exporter cuts a graph wherever a model says ``torch.no_grad()``, and puts it together again where nothing
    changes by that. It takes a tenth of a first call (KL, Wan and TAEHV on a CPU).
    """
    try:
        from torch._export.passes import replace_set_grad_with_hop_pass as place
    except ImportError:
        yield
        return
    original: Any = getattr(place, "replace_set_grad_with_hop_pass", None)
    says: Any = getattr(place, "_is_set_grad_enabled_node", None)

    def replaced(module: Any, signature: Any) -> Any:
        nodes = list(module.graph.nodes)
        switches = [node for node in nodes if says(node)]
        inner = any(isinstance(part, torch.fx.GraphModule) for part in module.children())
        if inner or torch.is_grad_enabled() or any(node.args != (False,) or node.users for node in switches):
            return original(module, signature)
        for node in switches:
            module.graph.erase_node(node)
        if switches:
            module.recompile()
        return module, signature

    if says is None:
        yield
        return
    with instead(place, "replace_set_grad_with_hop_pass", replaced):
        yield
