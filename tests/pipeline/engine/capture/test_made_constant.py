"""Which guards of the exporter make a size a constant."""

from __future__ import annotations

import pytest
import sympy

from tvae.pipeline.engine.capture.made_constant import _pins

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
