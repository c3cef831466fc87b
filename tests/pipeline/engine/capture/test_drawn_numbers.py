"""Random numbers of Python's and NumPy's are no constants of a graph."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tvae.pipeline import TiledVAE
from tvae.pipeline.engine.capture.drawn_numbers import refusing_draws
from tvae.pipeline.errors import UnsupportedOp

DRAWS: dict[str, Callable[[], Any]] = {
    "random.random": lambda: random.random(),
    "random.choice": lambda: random.choice([1.0, 2.0]),
    "numpy.random.rand": lambda: float(np.random.rand()),
    "numpy.random.normal": lambda: np.random.normal(0, 1, 4).tolist()[0],
    "numpy.random.default_rng": lambda: float(np.random.default_rng().random()),
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


def test_other_threads_draw_on() -> None:
    found: list[float] = []
    with refusing_draws():
        thread = threading.Thread(target=lambda: found.extend([random.random(), float(np.random.rand())]))
        thread.start()
        thread.join(20)
    assert len(found) == 2
