"""Objects of Python and NumPy that change when they are asked, where no attribute shows it: generators of random
numbers, counters, iterators, and functions that yield."""

from __future__ import annotations

import gc
import itertools
import operator
import pickle
import random
from collections.abc import Callable, Iterator
from types import GeneratorType
from typing import Any, NamedTuple

import numpy as np

__all__ = ["HiddenState", "hidden_state"]

_ITERATORS = ("builtins", "itertools", "_collections", "array", "numpy")
"""Where iterators without attributes are defined."""


class HiddenState(NamedTuple):
    """look: the state now, as something that ``==`` compares. restore: puts it back to what it was when this was made;
    None where nothing can."""

    look: Callable[[], Any]
    restore: Callable[[], object] | None


def hidden_state(value: Any) -> HiddenState | None:
    """Of an object that has one; None for any other."""
    if isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        drawn = value.getstate()
        return HiddenState(value.getstate, lambda: value.setstate(drawn))
    if isinstance(value, np.random.RandomState):
        before = value.get_state(legacy=False)
        return HiddenState(lambda: pickle.dumps(value.get_state(legacy=False)), lambda: value.set_state(before))
    if isinstance(value, np.random.Generator):
        return hidden_state(value.bit_generator)
    if isinstance(value, np.random.BitGenerator):
        state = value.state
        return HiddenState(lambda: pickle.dumps(value.state), lambda: setattr(value, "state", state))
    if isinstance(value, itertools.count):
        return HiddenState(lambda: repr(value), None)
    if isinstance(value, GeneratorType):
        return HiddenState(lambda: _of_generator(value), None)
    if isinstance(value, Iterator) and type(value).__module__ in _ITERATORS:
        if hasattr(value, "__length_hint__"):
            return HiddenState(lambda: operator.length_hint(value, -1), None)  # -1: the same for ever
        return HiddenState(lambda: _of_iterators_inside(value), None)
    return None


def _of_iterators_inside(value: Iterator[Any]) -> Any:
    """What ``zip``, ``map``, ``chain`` and others take from: it moves on whenever they do. Where nothing shows what one
    does, such as a ``cycle`` after its first round, each look is another: it may have been asked."""
    inside = [one for held in gc.get_referents(value) for one in (held if isinstance(held, tuple) else (held,))]
    moving = [one for one in inside if isinstance(one, Iterator) and not isinstance(one, itertools.repeat)]
    found = [(id(one), hidden_state(one)) for one in moving]
    return [(key, object() if state is None else state.look()) for key, state in found] or object()


def _of_generator(value: GeneratorType[Any, Any, Any]) -> Any:
    """Where it stands, and what its names stand for."""
    frame = value.gi_frame
    return None if frame is None else (frame.f_lasti, {name: id(held) for name, held in frame.f_locals.items()})
