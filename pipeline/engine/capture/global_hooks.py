"""Hooks that are on every module of the process: the exporter's own modules, and ours, do not have them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.nn.modules import module as torch_module

from tvae.pipeline.engine.capture.in_thread import put_in

__all__ = ["hooks_on_models_alone"]

_NOT_A_MODELS = ("torch.export.", "torch.fx.", "torch._", "tvae.pipeline.engine.")


@contextmanager
def hooks_on_models_alone() -> Iterator[None]:
    """In this thread, where there are such hooks."""
    if not (torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks):
        yield
        return
    thread, place = threading.get_ident(), vars(nn.Module)["_call_impl"]

    def call(module: Any, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() == thread and type(module).__module__.startswith(_NOT_A_MODELS):
            return module.forward(*args, **kwargs)
        return place(module, *args, **kwargs)

    with put_in(nn.Module, "_call_impl", call):
        yield
