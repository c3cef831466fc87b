"""What was made for the last few shapes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

__all__ = ["recall"]

_KEPT_SHAPES = 256


def recall(cache: OrderedDict[Any, Any], key: Any, make: Callable[[], Any]) -> Any:
    """What is kept under a key, made where there is nothing. What has gone unused for longest goes."""
    if key in cache:
        cache.move_to_end(key)
        return cache[key]
    cache[key] = made = make()
    if len(cache) > _KEPT_SHAPES:
        cache.popitem(last=False)
    return made
