"""Functions of other modules and classes, replaced in one thread; all others keep the originals."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["instead", "left_out", "put_in", "replaced_in"]


def _this_thread() -> int:
    return threading.get_ident()


vars(_this_thread)["_dynamo_marked_constant"] = True  # so that a torch.compile of another thread sees the original


def replaced_in(thread: int, original: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that is this one in the thread, and the original in all others."""

    @functools.wraps(original)
    def either(*args: Any, **kwargs: Any) -> Any:
        return (function if _this_thread() == thread else original)(*args, **kwargs)

    return either


@contextmanager
def instead(place: Any, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """``place.name`` is this function in this thread. What a release of PyTorch does not have is left out."""
    original: Any = getattr(place, name, None)
    if original is None:
        yield
        return
    with put_in(place, name, replaced_in(threading.get_ident(), original, function)):
        yield


@contextmanager
def put_in(place: Any, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """``place.name`` is this function, which tells threads apart itself. What other code puts there in that time
    stays."""
    inherited, original = name not in vars(place), getattr(place, name, None)
    setattr(place, name, function)
    try:
        yield
    finally:
        if vars(place).get(name) is function:
            if inherited:
                delattr(place, name)
            else:
                setattr(place, name, original)


def left_out(place: Any, name: str) -> Any:
    """A function that does nothing in this thread."""
    return instead(place, name, lambda *_args, **_kwargs: None)
