"""What the code of a model may write to that is no part of it: globals, containers in globals and classes, and caches
of functions. A capture that leaves its placeholder tensors there would break the model's next call of its own.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from tvae.pipeline.session.identity.hidden_state import hidden_state
from tvae.pipeline.session.identity.walk import Walk

__all__ = ["Outside"]


class Outside:
    """See the module's docstring. containers: dictionaries, lists, sets. globals: of modules, those names that the
    model's code mentions, with their values. functions: those that it may run. changing: objects that the model or its
    code refers to, and that have a ``hidden_state``."""

    def __init__(self, module: nn.Module) -> None:
        walk = Walk(module, ())
        walk.run()
        walk.close()
        self.containers, self.globals = walk.watch.containers(), walk.watch.globals()
        self.functions, self.changing = walk.watch.functions(), [v for v in walk.met if hidden_state(v) is not None]
        self._caches = [(cache, _computed(cache)) for cache in walk.watch.caches]

    def empty_caches(self) -> None:
        """Those of functions that have computed something since. What was in them is computed again when needed."""
        for n, (cache, before) in enumerate(self._caches):
            if _computed(cache) != before:
                cache.cache_clear()
                self._caches[n] = cache, _computed(cache)


def _computed(cache: Any) -> int:
    return int(cache.cache_info().misses)
