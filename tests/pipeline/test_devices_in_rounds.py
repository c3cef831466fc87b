"""Calls that processes share with messages as GPUs send them: every family, both sides, uneven bands."""

from __future__ import annotations

import copy
from unittest import mock

import pytest
import torch
from gloo_ranks import in_ranks
from gloo_rounds import RoundsExchange
from slow_but import slow_but
from tiny_vaes import TINY, relative_l2, result
from torch import Tensor
from torch import distributed as dist

from tvae.pipeline import TiledVAE
from tvae.pipeline.models.reference import call_reference, reference_mode
from tvae.pipeline.session import peers

FEW = ["AutoencoderKL", "AutoencoderKLWan", "VQModel"]


def shared(_rank: int, names: list[str]) -> list[Tensor]:
    """Distances from the model in float64."""
    found = []
    with mock.patch.object(peers, "exchange_of", RoundsExchange):
        for name in names:
            tiny = TINY[name]
            model = tiny.build()
            wide, vae = copy.deepcopy(model).double(), TiledVAE(model, group=dist.group.WORLD, strip=3)
            for side in ("decode", "encode"):
                x, extra = tiny.input(side, 13, 5), tiny.extra(side)
                with torch.no_grad(), reference_mode(wide):
                    want = result(call_reference(wide, side, x.double(), **extra))
                found.append(torch.tensor(relative_l2(result(getattr(vae, side)(x, **extra)), want)))
            assert isinstance(vae._peers._all, RoundsExchange)  # type: ignore[union-attr]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("names", slow_but([FEW], [FEW, *([name] for name in TINY if name not in FEW)]), ids=str)
def test_families(names: list[str]) -> None:
    for found in in_ranks(3, shared, names, seconds=300):
        assert len(found) == 2 * len(names)
        assert max(found) <= 1e-5
