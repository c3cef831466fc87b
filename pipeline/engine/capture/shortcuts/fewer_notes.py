"""Shortcut: the exporter leaves out notes on each node that tvae's graphs do not use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tvae.pipeline.engine.capture.in_thread import instead, left_out

__all__ = ["fewer_notes"]


@contextmanager
def fewer_notes() -> Iterator[None]:
    """For nodes exported inside this block. Does nothing with a release of PyTorch that is built otherwise."""
    from torch.fx.experimental import proxy_tensor

    # how every value lies in memory is noted twice: in what we read, and in a description that takes arithmetic on
    # symbols to find out whether it is contiguous
    with left_out(proxy_tensor, "_extract_tensor_metadata"), _innermost_modules(proxy_tensor):
        yield


@contextmanager
def _innermost_modules(proxy_tensor: Any) -> Iterator[None]:
    """A node notes the module that it comes from and not the modules around that one: their names take time later."""
    tracer_class: Any = getattr(proxy_tensor, "_ModuleStackTracer", None)
    if tracer_class is None:
        yield
        return

    def create_node(tracer: Any, *args: Any, **kwargs: Any) -> Any:
        tracer.record_stack_traces = False  # nor the lines of source that led to it, which takes longer than the node
        node = super(tracer_class, tracer).create_node(*args, **kwargs)
        around = node.meta.get("nn_module_stack") or tracer.module_stack
        path, kind = next(reversed(around.values()), ("", ""))
        name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"
        node.meta["nn_module_stack"] = {path: (path, name)} if path else {}
        return node

    with instead(tracer_class, "create_node", create_node):
        yield
