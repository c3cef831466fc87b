"""Variables of the environment that a model reads in each call: by their text, under a global's name, a default's."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from model_of_function import ModelOfFunction
from torch import Tensor

from tvae.pipeline import TiledVAE

GAIN = "MODEL_GAIN"
UNKNOWN = "no name at all: \ud800\0="


class Model(ModelOfFunction):
    def encode(self, x: Tensor) -> Tensor:
        return self.conv(x) * self.of(self, x)

    decode = encode


def by_text(model: Any, x: Tensor) -> Any:
    return float(os.environ.get("MODEL_GAIN", "0.5"))


def by_global(model: Any, x: Tensor) -> Any:
    return float(os.environ.get(GAIN, "0.5")) + len(UNKNOWN)


def by_default(model: Any, x: Tensor, name: str = "MODEL_GAIN", *, other: str = "MODEL_GAIN") -> Any:
    return float(os.getenv(name, "0.5")) + (2 if other in os.environ else 1)


@pytest.mark.parametrize("of", [by_text, by_global, by_default], ids=lambda of: of.__name__)
@torch.no_grad()
def test_their_values_are_those_of_the_call(
    of: Callable[[Any, Tensor], Tensor], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(GAIN, raising=False)
    tiled, x = TiledVAE(model := Model(of).eval(), "cpu", strip=2), torch.randn(1, 3, 9, 6)
    wide = copy.deepcopy(model).double()
    for value in (None, "1.5", "2.5", None):
        if value is None:
            monkeypatch.delenv(GAIN, raising=False)
        else:
            monkeypatch.setenv(GAIN, value)
        want = wide.encode(x.double())
        assert float((tiled.encode(x) - want).norm() / want.norm()) < 1e-5
