"""Sizes far beyond those that tests compute: nothing in a model makes a size that works at the first impossible later.

Models branch on sizes ("more than 32768 pixels go in pieces"), and a capture on the far side of such a branch may
refuse what it did on the near one. Plans are made of shapes alone, so that large sizes cost nothing.
"""

from __future__ import annotations

from typing import Any

import pytest
from slow_but import slow_but
from tiny_vaes import TINY

from tvae.pipeline import TiledVAE
from tvae.pipeline.memory import limits

SIZES = ((6, 5), (300, 250), (500, 700))
"""Height and width in latents, in the order in which one object meets them."""
QUICK = {"AutoencoderKL"}


@pytest.mark.long
@pytest.mark.parametrize("side", slow_but(["decode"], ["encode", "decode"]))
@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in TINY])
def test_large_sizes_are_planned(name: str, side: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "available_bytes", lambda: 1 << 40)
    tiny = TINY[name]
    tiled = TiledVAE(tiny.build(), "cpu")
    small = tiny.input(side, 2, 2).shape
    for height, width in SIZES:
        shape = (*small[:-2], small[-2] // 2 * height, small[-1] // 2 * width)
        assert tiled.plan(shape, side, **tiny.extra(side)).peak_bytes > 0
