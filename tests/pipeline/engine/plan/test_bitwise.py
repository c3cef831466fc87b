"""Heights of strips for the same bits."""

from __future__ import annotations

import pytest

from tvae.pipeline.engine.plan.bitwise import height_in_latent_rows


@pytest.mark.parametrize(
    ("rows", "preferred", "height"),
    [(1, 16, 8), (8, 16, 8), (63, 16, 8), (64, 16, 16), (512, 16, 16), (512, 256, 128), (130, 256, 32), (40, 2, 2)],
)
def test_heights(rows: int, preferred: int, height: int) -> None:
    """Powers of two, four strips or more, at least eight rows, at most the preset's."""
    assert height_in_latent_rows(rows, preferred) == height
