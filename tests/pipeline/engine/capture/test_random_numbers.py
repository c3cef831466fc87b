"""Random numbers of Python's and NumPy's are no constants of a graph."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tvae.pipeline import TiledVAE
from tvae.pipeline.errors import UnsupportedOp

DRAWS: dict[str, Callable[[], Any]] = {
    "random.random": lambda: random.random(),
    "random.choice": lambda: random.choice([1.0, 2.0]),
    "numpy.random.rand": lambda: float(np.random.rand()),
    "numpy.random.normal": lambda: np.random.normal(0, 1, 4).tolist()[0],
}
SAME: dict[str, Callable[[], Any]] = {
    "a seed": lambda: float(np.random.default_rng(7).random()),
    "a named seed": lambda: float(np.random.default_rng(seed=7).random()),
}


class Draws(nn.Module):
    def __init__(self, draw: Callable[[], Any]) -> None:
        super().__init__()
        self.conv, self.draw = nn.Conv2d(3, 4, 3, padding=1), draw

    def encode(self, x: Tensor) -> Tensor:
        h: Tensor = self.conv(x)
        return h * self.draw() if self.training or not hasattr(self, "only") else h

    decode = encode


@torch.no_grad()
@pytest.mark.parametrize("name", DRAWS)
def test_a_draw_is_refused_by_name(name: str) -> None:
    model, x = Draws(DRAWS[name]).eval(), torch.randn(1, 3, 9, 8)
    before = random.random, np.random.rand
    with pytest.raises(UnsupportedOp, match=rf"{name}.*torch\.rand"):
        TiledVAE(model, "cpu", strip=4).encode(x)
    assert (random.random, np.random.rand) == before
    model.only = True
    want = model.encode(x)
    assert float((TiledVAE(model, "cpu", strip=4).encode(x) - want).norm() / want.norm()) < 1e-5


@torch.no_grad()
@pytest.mark.parametrize("name", SAME)
def test_numbers_that_are_the_same_in_every_call(name: str) -> None:
    model, x = Draws(SAME[name]).train(), torch.randn(1, 3, 9, 8)
    want = model.encode(x)
    assert float((TiledVAE(model, "cpu", strip=4).encode(x) - want).norm() / want.norm()) < 1e-5


def of_its_own(model: Any, h: Tensor) -> Tensor:
    return h + torch.randn(h.shape, generator=torch.Generator().manual_seed(4))


def kept(model: Any, h: Tensor) -> Tensor:
    return h + torch.rand(h.shape, generator=model.generator.manual_seed(4))


def in_place(model: Any, h: Tensor) -> Tensor:
    return h + torch.empty_like(h).normal_(generator=model.generator)


def seeded(model: Any, h: Tensor) -> Tensor:
    torch.manual_seed(4)
    return h + torch.randn_like(h)


class Noisy(nn.Module):
    def __init__(self, of: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.of, self.generator = of, torch.Generator()

    def forward(self, h: Tensor) -> Tensor:
        return self.of(self, h)


class Around(nn.Module):
    def __init__(self, of: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.conv, self.noisy = nn.Conv2d(3, 4, 3, padding=1), Noisy(of)

    def encode(self, x: Tensor) -> Tensor:
        h: Tensor = self.noisy(self.conv(x))
        return h

    decode = encode


OWN = {
    of_its_own: "torch.randn",
    kept: "torch.rand",
    in_place: "torch.normal_",
    seeded: "torch.manual_seed",
}


@torch.no_grad()
@pytest.mark.parametrize("of", OWN, ids=lambda of: of.__name__)
def test_generators_of_a_models_own_are_refused(of: Callable[[Any, Tensor], Tensor]) -> None:
    tiled, x = TiledVAE(Around(of).eval(), "cpu", strip=4), torch.randn(1, 3, 9, 8)
    before = torch.get_rng_state()
    for _ in range(2):
        with pytest.raises(UnsupportedOp, match=rf"'{OWN[of]}' in module 'noisy' .* the same numbers"):
            tiled.encode(x)
    assert torch.equal(torch.get_rng_state(), before)


@torch.no_grad()
@pytest.mark.parametrize("generator", [None, torch.default_generator], ids=["none", "default"])
def test_the_callers_generator_may_be_named(generator: torch.Generator | None) -> None:
    def noisy(model: Any, h: Tensor) -> Tensor:
        return h + torch.randn(h.shape, generator=generator)

    model, x = Around(noisy).eval(), torch.randn(1, 3, 9, 8)
    torch.manual_seed(5)
    want = model.encode(x)
    torch.manual_seed(5)
    assert float((TiledVAE(model, "cpu", strip=4).encode(x) - want).norm() / want.norm()) < 1e-5
