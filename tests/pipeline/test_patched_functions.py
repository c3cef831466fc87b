"""Functions of ``torch.nn.functional`` that somebody has replaced belong to the model: they are applied once."""

from __future__ import annotations

from itertools import cycle, product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from slow_but import slow_but
from tiny_vaes import TINY, relative_l2, result

from tvae.pipeline import TiledVAE

FUNCTIONS = ("scaled_dot_product_attention", "silu", "linear", "interpolate", "pad", "conv2d", "group_norm")
"""Of group_norm the result is changed, as its input's scale does not matter."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "strip"),
    slow_but([*zip(FUNCTIONS, cycle((None, 2)), strict=False)], product(FUNCTIONS, (None, 2))),
)
def test_a_patch_is_applied_once(name: str, strip: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    model, real = TINY["AutoencoderKL"].build(), getattr(F, name)
    side = "encode" if name == "pad" else "decode"
    x = TINY["AutoencoderKL"].input(side, 8, 8)

    def called(vae: Any) -> torch.Tensor:
        with torch.no_grad():
            return result(getattr(vae, side)(x))

    vae = TiledVAE(model, "cpu", strip=strip)
    plain = called(vae)

    def patched(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return real(x, *args, **kwargs) * 0.7 if name == "group_norm" else real(x * 0.7, *args, **kwargs)

    monkeypatch.setattr(F, name, patched)
    wanted = called(model)
    for _ in range(2):
        assert relative_l2(called(vae), wanted) < 1e-5
    assert relative_l2(called(TiledVAE(model, "cpu", strip=strip)), wanted) < 1e-5
    assert relative_l2(plain, wanted) > 1e-5, "the patch changes the result"
    monkeypatch.undo()
    assert relative_l2(called(vae), plain) < 1e-6
