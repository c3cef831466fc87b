"""Failures of a capture that say nothing of the model: the same capture may succeed later."""

from __future__ import annotations

from collections.abc import Iterable

import torch

__all__ = ["may_pass"]

_KINDS = (MemoryError, OSError, ImportError, RecursionError, torch.OutOfMemoryError)
"""No memory, a file or a package that is not there now, a stack that the caller has filled."""
_WORDS = ("not enough memory", "allocate memory", "out of memory", "CUDA error", "start new thread")
"""Of errors that PyTorch raises as any other."""


def may_pass(errors: Iterable[BaseException]) -> bool:
    """Is one of these, or what led to one, such a failure, or an interruption?"""
    return any(
        not isinstance(error, Exception) or isinstance(error, _KINDS) or any(words in str(error) for words in _WORDS)
        for first in errors
        for error in _chain(first)
    )


def _chain(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    left = [error]
    while left:
        one = left.pop()
        if one is not None and all(one is not other for other in found):
            found.append(one)
            left += [one.__cause__, one.__context__]
    return found
