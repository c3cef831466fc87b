"""Inputs of other channels than the model's: a plan refuses what the call refuses, with the same words."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from slow_but import slow_but
from tiny_vaes import TINY

from tvae.pipeline import TiledVAE
from tvae.pipeline.errors import UsageError


def told(call: Any) -> str:
    with pytest.raises(UsageError, match="channels") as caught:
        call()
    return str(caught.value)


@pytest.mark.long
@pytest.mark.parametrize(
    ("family", "side"),
    slow_but([("AutoencoderKL", "decode")], [("AutoencoderKL", "decode"), ("AutoencoderKLWan", "encode")]),
)
def test_a_plan_refuses_what_the_call_refuses(family: str, side: str) -> None:
    tiny = TINY[family]
    tiled: Any = TiledVAE(tiny.build(), "cpu", strip=3)
    x = tiny.input(side, 6, 5)
    wrong = torch.zeros(x.shape[0], x.shape[1] + 1, *x.shape[2:])
    assert told(lambda: tiled.plan(tuple(wrong.shape), side)) == told(lambda: getattr(tiled, side)(wrong))
    assert tiled.plan(tuple(x.shape), side).peak_bytes > 0
