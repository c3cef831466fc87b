"""Replace functions of other modules and classes in one thread; all other threads keep the originals."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["in_thread", "patched", "set_attribute"]


def _this_thread() -> int:
    return threading.get_ident()


vars(_this_thread)["_dynamo_marked_constant"] = True  # so that torch.compile in another thread traces the original


def in_thread(thread: int, original: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls ``function`` in this thread and ``original`` in all others."""

    @functools.wraps(original)
    def either(*args: Any, **kwargs: Any) -> Any:
        return (function if _this_thread() == thread else original)(*args, **kwargs)

    return either


@contextmanager
def patched(place: Any, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Replace ``place.name`` in this thread. Do nothing where a release of PyTorch has no such attribute."""
    original: Any = getattr(place, name, None)
    if original is None:
        yield
        return
    with set_attribute(place, name, in_thread(threading.get_ident(), original, function)):
        yield


@contextmanager
def set_attribute(place: Any, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Set ``place.name`` for all threads, and restore it unless other code has replaced it in between."""
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
