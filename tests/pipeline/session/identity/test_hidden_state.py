"""Models that ask generators of random numbers, counters and iterators give another result in every call: refused."""

from __future__ import annotations

import itertools
import pickle
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tvae.pipeline import TiledVAE
from tvae.pipeline.errors import UnsupportedOp, UsageError
from tvae.pipeline.session.identity.hidden_state import hidden_state

OF_PYTHON, OF_NUMPY, COUNT = random.Random(3), np.random.default_rng(0), itertools.count(1)
HELD: list[Any] = [np.random.default_rng(1)]


class Holder:
    def __init__(self, held: Any) -> None:
        self.held = held


class OwnRandom(random.Random):
    """Has attributes, too."""

    def __init__(self) -> None:
        super().__init__(4)
        self.name = "own"


class Draws(nn.Module):
    """draw: of what is held in ``held``."""

    def __init__(self, draw: Callable[[Any], Any], held: Any = None) -> None:
        super().__init__()
        self.conv, self.draw, self.held, self.quiet = nn.Conv2d(3, 4, 3, padding=1), draw, held, False

    def encode(self, x: Tensor) -> Tensor:
        h: Tensor = self.conv(x)
        return h if self.quiet else h * (1.5 + self.draw(self.held))

    decode = encode


def counted() -> Iterator[float]:
    n = 0.0
    while True:
        n += 1
        yield n


def by_default(_held: Any, rng: np.random.RandomState = np.random.RandomState(5)) -> float:  # noqa: B008
    return float(rng.rand())


def closed_over() -> Callable[[Any], float]:
    rng = random.Random(9)
    return lambda _held: rng.random()


UNSEEN = {
    *("a cycle in its second round", "sums of one number", "one half of two", "a map of products"),
    *("a map of an object", "a function until an end", "an array's"),
}
"""Nothing shows where these are: a model that has one is refused."""


class Halves:
    """An iterator of Python's own kind, whose attribute shows where it is."""

    def __init__(self) -> None:
        self.n = 0

    def __iter__(self) -> Iterator[float]:
        return self

    def __next__(self) -> float:
        self.n += 1
        return self.n / 2


NUMBERS = [float(n) for n in range(1, 99)]
ITERATORS: dict[str, Callable[[], Iterator[float]]] = {
    "a cycle": lambda: itertools.cycle(NUMBERS),
    "a cycle in its second round": lambda: itertools.cycle([1.0, 2.0, 3.0]),
    "a map": lambda: map(float, range(1, 99)),
    "a map of a zip": lambda: map(sum, zip(NUMBERS, NUMBERS, strict=True)),
    "a filter": lambda: filter(None, iter(NUMBERS)),
    "a chain": lambda: itertools.chain([1.0], NUMBERS[1:]),
    "a chain of an iterator": lambda: itertools.chain.from_iterable([n] for n in NUMBERS),
    "a slice": lambda: itertools.islice(itertools.count(1), 99),
    "a map of numbered ones": lambda: map(sum, enumerate(NUMBERS)),
    "sums": lambda: itertools.accumulate(NUMBERS),
    "sums of one number": lambda: itertools.accumulate(itertools.repeat(1.0)),
    "one half of two": lambda: itertools.tee(NUMBERS)[0],
    "a backward one": lambda: reversed(NUMBERS),
    "a map of products": lambda: map(sum, itertools.product(NUMBERS, NUMBERS)),
    "a map of an object": lambda: map(float, Halves()),
    "an object": Halves,
    "a function until an end": lambda: iter(counted().__next__, 1e9),
    "an array's": lambda: iter(np.arange(1.0, 99.0).flat),
}
CASES: dict[str, Callable[[], Draws]] = {
    "of NumPy": lambda: Draws(lambda rng: float(rng.random()), np.random.default_rng(0)),
    "of Python": lambda: Draws(lambda rng: rng.random(), random.Random(1)),
    "old, of NumPy": lambda: Draws(lambda rng: float(rng.rand()), np.random.RandomState(1)),
    "bits": lambda: Draws(lambda bits: float(np.random.Generator(bits).random()), np.random.MT19937(4)),
    "of a class derived from Python's": lambda: Draws(lambda rng: rng.random(), OwnRandom()),
    "in a list": lambda: Draws(lambda held: held[0].random(), [random.Random(1)]),
    "in an object": lambda: Draws(lambda held: float(held.held.random()), Holder(np.random.default_rng(2))),
    "global, of Python": lambda: Draws(lambda _: OF_PYTHON.random()),
    "global, of NumPy": lambda: Draws(lambda _: float(OF_NUMPY.random())),
    "in a global list": lambda: Draws(lambda _: float(HELD[0].random())),
    "a default": lambda: Draws(by_default),
    "closed over": lambda: Draws(closed_over()),
    "a counter": lambda: Draws(lambda _: next(COUNT)),
    "an iterator": lambda: Draws(next, iter([1.0, 2.0, 3.0, 4.0] * 20)),
    "a function that yields": lambda: Draws(next, counted()),
    **{name: (lambda make=make: Draws(next, make())) for name, make in ITERATORS.items()},
}


@torch.no_grad()
@pytest.mark.parametrize("name", CASES)
def test_what_changes_when_it_is_asked_is_refused(name: str) -> None:
    model, x = CASES[name]().eval(), torch.randn(1, 3, 9, 8)
    assert not torch.equal(model.encode(x), model.encode(x)), "the test's own"
    tiled = TiledVAE(model, "cpu", strip=4)
    for _ in range(2):
        with pytest.raises(UsageError, match="keeps state between calls"):
            tiled.encode(x)
    if name in UNSEEN:
        return
    model.quiet = True
    want = model.encode(x)
    assert float((tiled.encode(x) - want).norm() / want.norm()) < 1e-5, "what is held and not asked does no harm"


@torch.no_grad()
@pytest.mark.parametrize(
    "name", sorted(CASES.keys() - {"a counter", "an iterator", "a function that yields"} - ITERATORS.keys())
)
def test_a_refusal_draws_nothing(name: str) -> None:
    """The next numbers are those that would have come."""
    model, x = CASES[name]().eval(), torch.randn(1, 3, 9, 8)
    held = model.held[0] if isinstance(model.held, list) else getattr(model.held, "held", model.held)
    states = [hidden_state(rng) for rng in (held, OF_PYTHON, OF_NUMPY, HELD[0])]
    before = [None if state is None else state.look() for state in states]
    with pytest.raises(UsageError):
        TiledVAE(model, "cpu", strip=4).encode(x)
    assert [None if state is None else state.look() for state in states] == before


@torch.no_grad()
def test_a_generator_that_every_call_seeds() -> None:
    def seeded(rng: random.Random) -> float:
        rng.seed(7)
        return rng.random()

    model, x = Draws(seeded, random.Random(1)).eval(), torch.randn(1, 3, 9, 8)
    want = model.encode(x)
    assert torch.equal(model.encode(x), want)
    assert float((TiledVAE(model, "cpu", strip=4).encode(x) - want).norm() / want.norm()) < 1e-5


def test_states_are_told_and_put_back() -> None:
    made = [random.Random(1), np.random.default_rng(1), np.random.RandomState(1), np.random.MT19937(1)]
    for rng in made:
        state = hidden_state(rng)
        assert state is not None
        assert state.restore is not None
        before = state.look()
        assert state.look() == before
        numbers = pickle.loads(pickle.dumps(rng)), rng  # the copy goes first
        draws = [[_drawn(each) for _ in range(700)] for each in numbers]
        assert draws[0] == draws[1]
        assert state.look() != before
        state.restore()
        assert state.look() == before
        assert [_drawn(rng) for _ in range(700)] == draws[0]
    once = hidden_state(itertools.repeat(2.0))
    assert once is not None
    assert once.look() == once.look(), "what never changes"
    for other in (random, object(), 3, [1], "text", torch.zeros(1), range(3), Holder(1), sys.stdout, np.zeros(2)):
        assert hidden_state(other) is None


def _drawn(rng: Any) -> float:
    if isinstance(rng, np.random.BitGenerator):
        return float(np.random.Generator(rng).random())
    return float(rng.random() if hasattr(rng, "random") else rng.rand())
