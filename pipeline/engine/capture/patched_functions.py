"""Functions of ``torch.nn.functional`` and methods of tensors that somebody has replaced are captured once.

These hand their calls to the exporter's modes under their own names. Where another function has such a name, and calls
the first, each mode calls the other function again: five times for ``silu``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tvae.pipeline.engine.capture.in_thread import instead

__all__ = ["patched_once"]

_OWN: list[tuple[Any, dict[str, Any]]] = [
    (F, {name: f for name, f in vars(F).items() if isinstance(f, FunctionType) and f.__globals__ is vars(F)}),
    (Tensor, {name: getattr(Tensor, name) for name, f in vars(torch._C.TensorBase).items() if callable(f)}),
]
"""PyTorch's own by where they are, as they were when this module was imported."""


@contextmanager
def patched_once() -> Iterator[None]:
    """In this thread, what has been put in a function's place is called once for each call of the model's."""
    with ExitStack() as places:
        for place, functions in _OWN:
            for name, own in functions.items():
                patched = getattr(place, name, own)
                binds = place is F or isinstance(patched, FunctionType)  # a method gets its tensor
                if patched is not own and binds:
                    places.enter_context(instead(place, name, _once(patched, own)))
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
