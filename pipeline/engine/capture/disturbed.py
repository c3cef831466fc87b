"""Captures that another thread has disturbed: they are tried once more.

While the exporter computes with stand-ins for tensors, their mode remembers whether it is inside of an operation, for
all threads. Another thread that copies the module in that time, as an average of its weights does, computes with the
stand-ins that are there then, and one of the two finds the mode as the other has left it. Such a failure says nothing
of the model.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from traceback import walk_tb
from typing import ParamSpec, TypeVar

__all__ = ["again_where_disturbed"]

_P = ParamSpec("_P")
_R = TypeVar("_R")
_TIMES = 5
_CHECK = "in_kernel_invocation_manager"
"""The function of PyTorch's that finds the mode as another thread has left it, and raises an AssertionError."""
_log = logging.getLogger("tvae")


def again_where_disturbed(export: Callable[_P, _R]) -> Callable[_P, _R]:
    """The same, up to five times. The last failure is raised."""

    @functools.wraps(export)
    def exported(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        for _ in range(_TIMES - 1):
            try:
                return export(*args, **kwargs)
            except Exception as error:  # whatever it is, others than the mode's are raised
                if not any(map(_is_of_the_mode, _chain(error))):
                    raise
                _log.debug("another thread has disturbed a capture", exc_info=True)
        return export(*args, **kwargs)

    return exported


def _is_of_the_mode(error: BaseException) -> bool:
    frames = walk_tb(error.__traceback__)
    return isinstance(error, AssertionError) and any(frame.f_code.co_name == _CHECK for frame, _ in frames)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
