"""One attribute put in another's place for a while, or a function whose results are larger."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["louder", "swapped"]


@contextmanager
def swapped(owner: Any, name: str, value: Any) -> Iterator[None]:
    """An attribute of an object, class or module set, and put back as it was: removed where there was none."""
    had, before = name in vars(owner), vars(owner).get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if had:
            setattr(owner, name, before)
        else:
            delattr(owner, name)


def louder(function: Callable[..., Any], factor: float = 1.5) -> Callable[..., Any]:
    @functools.wraps(function)
    def more(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs) * factor

    return more
