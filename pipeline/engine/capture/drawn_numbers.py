"""Models that draw random numbers of Python's or NumPy's: a graph would keep those of its capture for all calls."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any

import numpy as np

from tvae.pipeline.engine.capture.in_thread import instead
from tvae.pipeline.engine.capture.kinds_of_sizes import knows_sizes
from tvae.pipeline.errors import UnsupportedOp

__all__ = ["refusing_draws"]

_STATES = {"seed", "getstate", "setstate", "get_state", "set_state"}


@contextmanager
def refusing_draws() -> Iterator[None]:
    """In this thread the functions of ``random`` and ``numpy.random`` raise UnsupportedOp where a model calls them, and
    so do ``default_rng`` without a seed, and ``SystemRandom``."""
    with ExitStack() as places:
        for module, kind in ((random, random.Random), (np.random, np.random.RandomState)):
            for name in _drawing(module, kind):
                places.enter_context(instead(module, name, _refusing(f"{module.__name__}.{name}", vars(module)[name])))
        for name in ("random", "getrandbits", "randbytes"):  # by which it does all else
            own = vars(random.SystemRandom)[name]
            places.enter_context(instead(random.SystemRandom, name, _refusing("random.SystemRandom", own)))
        places.enter_context(
            instead(np.random, "default_rng", _refusing("numpy.random.default_rng", np.random.default_rng, _seeded))
        )
        yield


def _seeded(seed: Any = None) -> bool:
    return seed is not None


def _drawing(module: ModuleType, kind: type) -> list[str]:
    """Functions that draw from the generator of a module."""
    found = {name: getattr(function, "__self__", None) for name, function in vars(module).items()}
    return [name for name, of in found.items() if isinstance(of, kind) and name not in _STATES]


def _refusing(
    name: str, original: Callable[..., Any], same: Callable[..., bool] = lambda *_args, **_more: False
) -> Callable[..., Any]:
    """same: does a call with these arguments give the same every time?"""

    def drawn(*args: Any, **kwargs: Any) -> Any:
        if knows_sizes(sys._getframe(2)) or same(*args, **kwargs):  # the first is what stands in for the original
            return original(*args, **kwargs)
        why = "each call would draw another number, and a graph keeps one: use torch.rand or torch.randn"
        raise UnsupportedOp(name, "", why, whole=False)

    return drawn
