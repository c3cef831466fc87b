"""Captures that were refused, so that the same call is refused at once.

Each is kept by what its capture depended on, its shapes included, and without its traceback, whose frames hold models
and tensors. What may pass by itself (no memory, a time-out) is not kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

from tvae.pipeline.errors import TvaeError, UnsupportedOp, UsageError

__all__ = ["Refusals"]

_KEPT = 256


class Refusals:
    """See the module's docstring. Of one state of a model."""

    def __init__(self) -> None:
        self._known: OrderedDict[Hashable, tuple[type[TvaeError], tuple[Any, ...], dict[str, Any]]] = OrderedDict()

    def check(self, key: Hashable) -> None:
        """Raises the error of this key, where there is one: a new object of the same class, words and attributes."""
        if key not in self._known:
            return
        self._known.move_to_end(key)
        kind, args, attributes = self._known[key]
        error = kind.__new__(kind)
        error.args = args
        vars(error).update(attributes)
        raise error

    def keep(self, key: Hashable, error: UnsupportedOp | UsageError) -> None:
        """Remember it, unless it may pass; in the place of the one that has gone unused for longest if need be."""
        if isinstance(error, UnsupportedOp) and error.may_pass:
            return
        self._known[key] = type(error), error.args, dict(vars(error))
        if len(self._known) > _KEPT:
            self._known.popitem(last=False)
