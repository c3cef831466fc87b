"""Copies and pickles of wrappers that have more than a wrapper's own attributes."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tiny_vaes import TINY
from torch import Tensor, nn

from tvae.pipeline import TiledVAE

Z = torch.randn(1, 4, 6, 5, generator=torch.Generator().manual_seed(1))
COPIED: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda tiled: pickle.loads(pickle.dumps(tiled)),
}


class Scaled(TiledVAE):
    """Takes other arguments than the class that it is made of."""

    def __init__(self, scale: float, vae: nn.Module) -> None:
        super().__init__(vae, "cpu", strip=3)
        self._scale = scale
        self.asked: list[int] = []

    def decode(self, z: Tensor, *args: Any, **kwargs: Any) -> Any:
        self.asked.append(z.shape[-1])
        return super().decode(z * self._scale, *args, **kwargs)


@pytest.mark.parametrize("way", COPIED)
def test_a_subclass_stays_one(way: str) -> None:
    tiled = Scaled(0.5, TINY["AutoencoderTiny"].build())
    want = tiled.decode(Z).sample
    tiled.noted = "by hand"
    other = COPIED[way](tiled)
    assert type(other) is Scaled
    assert other._strip == 3
    assert (other.noted, other.asked) == ("by hand", [5])
    assert torch.equal(other.decode(Z).sample, want)
    assert (other.asked is tiled.asked) is (way == "copy")


@pytest.mark.parametrize("way", COPIED)
def test_hooks_stay_with_the_object_that_has_them(way: str) -> None:
    """accelerate's are functions inside of functions, which no file can hold."""
    tiled = TiledVAE(TINY["AutoencoderTiny"].build(), "cpu")
    tiled._hf_hook = tiled.forward = lambda: None  # type: ignore[assignment]
    assert "forward" not in vars(COPIED[way](tiled))
