"""Which guards of the exporter make a size a constant."""

from __future__ import annotations

import re

import pytest
import sympy
import torch
from torch import Tensor, nn

from tvae.pipeline import TiledVAE
from tvae.pipeline.engine.capture.constants import _pins
from tvae.pipeline.errors import UnsupportedOp

H, W = sympy.symbols("h w", integer=True, positive=True)


@pytest.mark.parametrize(
    ("guard", "pins"),
    [
        (sympy.Eq(H * W, 3072), True),
        (sympy.Eq(48, 2 * H * W), True),
        (sympy.Eq((H // 2) * (W // 2), 48), True),
        (sympy.Eq(3 * (H // (H // 4)) * (W // (W // 4)), 48), False),
        (sympy.Eq(64, 16 * (W // (16 * (W // 32))) * (H // (16 * (H // 32)))), False),
        (sympy.Eq(H * W, 4 * (H // 2) * (W // 2)), False),
        (sympy.Ne(H * W, 3072), False),
        (sympy.Eq(H**2, 144), True),
        (sympy.Eq(sympy.sqrt(H * W), 48), True),
        (sympy.Eq(H // (H // 4), 4), False),
        (sympy.Eq(H % 4, 3), False),
    ],
    ids=str,
)
def test_a_product_that_is_one_number_pins_its_sizes(guard: sympy.Basic, pins: bool) -> None:
    assert _pins(guard) == pins


class Unnamed(nn.Module):
    """Its methods do not call it ``self``."""

    def __init__(this) -> None:
        super().__init__()
        this.part = Part()

    def encode(this, x: Tensor) -> Tensor:
        return this.part(x)  # type: ignore[no-any-return]

    decode = encode


class Part(nn.Module):
    def __init__(module) -> None:
        super().__init__()
        module.conv, module.table = nn.Conv2d(3, 4, 3, padding=1), {16: 2.0}

    def forward(module, x: Tensor) -> Tensor:
        y: Tensor = module.conv(x)
        return y * module.table[y.shape[2]]


def test_the_line_of_a_model_that_calls_itself_otherwise() -> None:
    with pytest.raises(UnsupportedOp, match=re.escape("'return y * module.table[y.shape[2]]' in module 'part'")):
        TiledVAE(Unnamed().eval(), "cpu", strip=2).encode(torch.randn(1, 3, 16, 12))
