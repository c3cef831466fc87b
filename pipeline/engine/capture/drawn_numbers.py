"""Models that draw random numbers of Python's or NumPy's: a graph would keep those of its capture for all calls. And
those that draw PyTorch's from a generator of their own, or seed it: a run draws from the caller's."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

from tvae.pipeline.engine.capture.in_thread import instead
from tvae.pipeline.engine.capture.kinds_of_sizes import knows_sizes
from tvae.pipeline.engine.capture.made_constant import asking_module
from tvae.pipeline.errors import UnsupportedOp

__all__ = ["check_generator", "refusing_draws"]

_STATES = {"seed", "getstate", "setstate", "get_state", "set_state"}
_SEEDS: tuple[tuple[Any, str], ...] = (
    *((place, name) for place in (torch, torch.random) for name in ("manual_seed", "seed", "set_rng_state")),
    *((torch.cuda, name) for name in ("manual_seed", "manual_seed_all", "seed", "seed_all", "set_rng_state")),
    (torch.random, "fork_rng"),
)
_ANOTHER = "each call would draw another number, and a graph keeps one: use torch.rand or torch.randn"
_THE_SAME = "each call would draw the same numbers, and a run draws others: keep them in a buffer of the model"


def check_generator(model: nn.Module, func: Any, generator: Any) -> None:
    """Raises UnsupportedOp for a generator that a model gives to a function, unless it is PyTorch's own. A model that
    is captured does not get the caller's."""
    if isinstance(generator, torch.Generator) and generator not in (torch.default_generator, *_of_cuda()):
        name, module = f"torch.{func.__name__}", asking_module(model, sys._getframe(2))
        raise UnsupportedOp(name, module, f"it draws from a generator of the model's own. {_THE_SAME}", whole=False)


def _of_cuda() -> tuple[torch.Generator, ...]:
    return torch.cuda.default_generators if torch.cuda.is_initialized() else ()


@contextmanager
def refusing_draws(model: nn.Module) -> Iterator[None]:
    """In this thread the functions of ``random`` and ``numpy.random`` raise UnsupportedOp where this model calls them,
    and so do ``default_rng`` without a seed, ``SystemRandom``, and what seeds PyTorch's generators."""

    def refusing(
        name: str, original: Any, same: Callable[..., bool] = lambda *_args, **_more: False, why: str = _ANOTHER
    ) -> Callable[..., Any]:
        """same: does a call with these arguments give the same every time?"""

        def drawn(*args: Any, **kwargs: Any) -> Any:
            asks = sys._getframe(2)  # the first is what stands in for the original
            if knows_sizes(asks) or same(*args, **kwargs):
                return original(*args, **kwargs)
            raise UnsupportedOp(name, asking_module(model, asks), why, whole=False)

        return drawn

    with ExitStack() as places:
        for place, name in _SEEDS:
            seeds = refusing(f"{place.__name__}.{name}", getattr(place, name), why=_THE_SAME)
            places.enter_context(instead(place, name, seeds))
        for module, kind in ((random, random.Random), (np.random, np.random.RandomState)):
            for name in _drawing(module, kind):
                places.enter_context(instead(module, name, refusing(f"{module.__name__}.{name}", vars(module)[name])))
        for name in ("random", "getrandbits", "randbytes"):  # by which it does all else
            own = vars(random.SystemRandom)[name]
            places.enter_context(instead(random.SystemRandom, name, refusing("random.SystemRandom", own)))
        places.enter_context(
            instead(np.random, "default_rng", refusing("numpy.random.default_rng", np.random.default_rng, _seeded))
        )
        yield


def _seeded(seed: Any = None) -> bool:
    return seed is not None


def _drawing(module: ModuleType, kind: type) -> list[str]:
    """Functions that draw from the generator of a module."""
    found = {name: getattr(function, "__self__", None) for name, function in vars(module).items()}
    return [name for name, of in found.items() if isinstance(of, kind) and name not in _STATES]
