"""A model that asks whether a compiler is at work (``torch.compiler.is_compiling``) gets the answer of its own call.

Such a model may compute something else for a compiler, and the graph is to be of what it computes without. PyTorch's
own code is told the truth: what it computes for an exporter is the same, and can be captured.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from types import FrameType
from typing import Any

from tvae.pipeline.engine.capture.in_thread import instead

__all__ = ["no_compiler_for_models"]

_QUESTIONS = ("is_compiling", "is_exporting")


@contextmanager
def no_compiler_for_models() -> Iterator[None]:
    """In this thread. The exporter's own notes of it, which are the whole process's, stay as they are."""
    import torch.export._trace

    with ExitStack() as places:
        places.enter_context(instead(torch.export._trace, "_compiling_state_context", nullcontext))
        for name in _QUESTIONS:
            places.enter_context(instead(torch.compiler, name, _answer(getattr(torch.compiler, name, None))))
        yield


def _answer(original: Any) -> Callable[[], bool]:
    def asked() -> bool:
        return _is_pytorchs(sys._getframe(2)) or bool(original())  # the first is what stands in for the original

    return asked


def _is_pytorchs(frame: FrameType | None) -> bool:
    """Is the code of this frame PyTorch's? Where it asks for others under the same name, whose is theirs?"""
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] != "torch":
            return False
        if frame.f_code.co_name not in _QUESTIONS:
            return True
        frame = frame.f_back
    return False
