"""Functions of ``torch.nn.functional`` that somebody has replaced are captured once.

A function that is written in Python hands its call to the exporter's modes under its own name. Where another function
has that name, and calls the first, each mode calls the other function again: five times for ``silu``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FunctionType
from typing import Any

import torch.nn.functional as F

from tvae.pipeline.engine.capture.in_thread import instead

__all__ = ["patched_once"]

_OWN = {name: f for name, f in vars(F).items() if isinstance(f, FunctionType) and f.__globals__ is vars(F)}
"""PyTorch's own, as they were when this module was imported."""


@contextmanager
def patched_once() -> Iterator[None]:
    """In this thread, what has been put in a function's place is called once for each call of the model's."""
    with ExitStack() as places:
        for name, own in _OWN.items():
            patched = getattr(F, name, own)
            if patched is not own:
                places.enter_context(instead(F, name, _once(patched, own)))
        yield


def _once(patched: Callable[..., Any], own: Callable[..., Any]) -> Callable[..., Any]:
    within = False

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal within
        if within:
            return own(*args, **kwargs)
        within = True
        try:
            return patched(*args, **kwargs)
        finally:
            within = False

    return call
