"""Steps of clips that ranks share are recorded, and their caches stay where the next step reads them. The ranks are
processes with gloo between them, with stand-ins for CUDA graphs (``tests/gpu/test_shared_recordings.py`` has those)."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
from gloo_ranks import in_ranks
from stand_in_recordings import Recordings
from tiny_vaes import TINY, relative_l2, result, waves
from torch import Tensor
from torch import distributed as dist

from tvae.pipeline import TiledVAE
from tvae.pipeline.engine.run import rank_rows
from tvae.pipeline.session import recorded_first_step, recorded_step

FRAMES = {"decode": 9, "encode": 29}


def clips(side: str) -> list[Tensor]:
    wan = TINY["AutoencoderKLWan"]
    like = wan.input(side, 8, 4)
    return [waves((*like.shape[:2], FRAMES[side], *like.shape[3:]), seed) for seed in (1, 2)]


def steps_in_group(_rank: int, side: str) -> list[Tensor]:
    """Two clips; runs that were recorded, replays, and caches that replays copied to and from their places."""
    recordings = Recordings()
    to, widen, widened = mock.Mock(wraps=recorded_step.copied), rank_rows.widened, list[bool]()

    def watched(value: Tensor, *where: Any, **how: Any) -> Tensor:
        found = widen(value, *where, **how)
        widened.append(recordings.replaying and found is not value)
        return found

    recorded_step.copied = to  # type: ignore[attr-defined]
    rank_rows.widened = watched  # type: ignore[assignment, attr-defined]
    vae = TiledVAE(TINY["AutoencoderKLWan"].build(), group=dist.group.WORLD)
    with torch.no_grad():
        found = [result(getattr(vae, side)(x)) for x in clips(side)]
    return [*found, torch.tensor([recordings.made, recordings.replayed, to.call_count, sum(widened)])]


@pytest.mark.parametrize("side", ["decode", "encode"])
def test_steps_keep_their_caches_in_the_recording(side: str) -> None:
    model = TINY["AutoencoderKLWan"].build().double()
    with torch.no_grad():
        want = [result(getattr(model, side)(x.double())) for x in clips(side)]
    for *found, counted in in_ranks(2, steps_in_group, side):
        assert all(relative_l2(mine, exact) <= 1e-5 for mine, exact in zip(found, want, strict=True))
        made, replayed, *copied = counted.tolist()
        assert made == 2, "one that reads the first places of caches, one that reads the others"
        assert replayed >= 8, "most of the steps"
        assert copied == [0, 0]


def begun_in_group(_rank: int, side: str) -> list[Tensor]:
    """Five clips, of which the fourth comes while the caches of one that was stopped are held; runs that were recorded
    when the second, the third and the last were over, replays of the last, and copies into places of caches."""
    recordings = Recordings()
    to = recorded_step.copied = recorded_first_step.copied = mock.Mock(wraps=recorded_step.copied)  # type: ignore[attr-defined]
    vae = TiledVAE(TINY["AutoencoderKLWan"].build(), group=dist.group.WORLD)
    one, other = clips(side)
    found, made = [], []
    with torch.no_grad():
        for n, x in enumerate((one, other, one, other, one)):
            (session,) = vae._sessions.values() or [None]
            if n == 3:
                (later,) = (r.runner.step for r in session._runs._ready.values() if r.runner.step is not None)
                held = later.begun()
            before = recordings.replayed
            found.append(result(getattr(vae, side)(x)))
            made.append(recordings.made)
            if n == 3:
                del held
    return [*found, torch.tensor([made[1], made[2], made[4], recordings.replayed - before, to.call_count])]


@pytest.mark.parametrize("side", ["decode", "encode"])
def test_first_steps_leave_their_caches_in_the_recording(side: str) -> None:
    model = TINY["AutoencoderKLWan"].build().double()
    with torch.no_grad():
        one, other = (result(getattr(model, side)(x.double())) for x in clips(side))
    steps = 1 + (FRAMES[side] - 1) // (1 if side == "decode" else 4)
    for *found, counted in in_ranks(2, begun_in_group, side):
        wanted = (one, other, one, other, one)
        assert all(relative_l2(mine, exact) <= 1e-5 for mine, exact in zip(found, wanted, strict=True))
        assert counted.tolist() == [2, 3, 3, steps, 0]
