"""Steps of clips that ranks share are recorded, and their caches stay where the next step reads them. The ranks are
processes with gloo between them, with stand-ins for CUDA graphs (``tests/gpu/test_shared_recordings.py`` has those)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from gloo_ranks import in_ranks
from recorded_steps import place, step
from slow_but import slow_but
from stand_in_recordings import Recordings
from tiny_vaes import TINY, relative_l2, result, waves
from torch import Tensor
from torch import distributed as dist

from tvae.pipeline import TiledVAE
from tvae.pipeline.engine.run import rank_rows
from tvae.pipeline.session import recorded_first_step, recorded_step, runner
from tvae.pipeline.session.kept_runs import KeptRuns
from tvae.pipeline.session.recorded_step import RecordedStep

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


@pytest.mark.slow
@pytest.mark.parametrize("side", slow_but(["decode"], ["decode", "encode"]))
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
    """Five clips, of which the fourth comes while the caches of one that was stopped are held, and four more after the
    recorded steps were dropped. Runs that were recorded when the second, the third, the fifth and the last were over;
    replays of the fifth, caches that it brought to recordings, and copies into places of caches."""
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
            before, brought = recordings.replayed, recordings.brought
            found.append(result(getattr(vae, side)(x)))
            made.append(recordings.made)
            if n == 3:
                del held
        counted = [*made[1:3], made[4], recordings.replayed - before, recordings.brought - brought, to.call_count]
        for each in [r.runner for r in session._runs._ready.values() if r.runner.step is not None]:
            each.drop_recording()
        del later, each
        found += [result(getattr(vae, side)(one)) for _ in range(4)]
    return [*found, torch.tensor([*counted, recordings.made])]


@pytest.mark.slow
@pytest.mark.parametrize("side", slow_but(["decode"], ["decode", "encode"]))
def test_first_steps_leave_their_caches_in_the_recording(side: str) -> None:
    model = TINY["AutoencoderKLWan"].build().double()
    with torch.no_grad():
        one, other = (result(getattr(model, side)(x.double())) for x in clips(side))
    steps = 1 + (FRAMES[side] - 1) // (1 if side == "decode" else 4)
    for *found, counted in in_ranks(2, begun_in_group, side):
        wanted = (one, other, one, other, one, *[one] * 4)
        assert all(relative_l2(mine, exact) <= 1e-5 for mine, exact in zip(found, wanted, strict=True))
        assert counted.tolist() == [2, 3, 3, steps, 0, 0, 6]


def alone(_rank: int, small: bool) -> list[Tensor]:
    """Four clips of two steps each. small: are the caches between them?"""
    recordings = Recordings()
    wan = TINY["AutoencoderKLWan"]
    vae, z = TiledVAE(wan.build(), group=dist.group.WORLD), wan.input("decode", 8, 4)[:, :, :2]
    with torch.no_grad():
        found = [result(vae.decode(z))]
        if not small:
            (session,) = vae._sessions.values()
            runner.MOST_CARRIED = max(each.runner._carried for each in session._runs._ready.values())
        found += [result(vae.decode(z)) for _ in range(3)]
    return [*found, torch.tensor([recordings.made, recordings.replayed])]


@pytest.mark.long
@pytest.mark.parametrize(("small", "wanted"), [(True, [2, 4]), pytest.param(False, [0, 0], marks=pytest.mark.slow)])
def test_steps_that_none_like_them_follow_are_recorded_where_caches_are_small(small: bool, wanted: list[int]) -> None:
    """They are copied then."""
    wan = TINY["AutoencoderKLWan"]
    with torch.no_grad():
        exact = result(wan.build().double().decode(wan.input("decode", 8, 4)[:, :, :2].double()))  # type: ignore[operator]
    for *found, counted in in_ranks(2, alone, small):
        assert all(relative_l2(mine, exact) <= 1e-5 for mine in found)
        assert counted.tolist() == wanted


def test_the_step_is_found_that_takes_such_caches() -> None:
    runs = KeptRuns(torch.device("cpu"))
    steps = {n: RecordedStep(step, mock.Mock(), [[place(n)] * 2 for _ in range(2)]) for n in (3, 4)}
    for n, each in (*steps.items(), (5, None)):
        runs.put(n, SimpleNamespace(runner=SimpleNamespace(step=each)))  # type: ignore[arg-type]
    for n, each in steps.items():
        assert runs.step_taking([((n,), torch.float32)] * 2) is each
    for other in ([((5,), torch.float32)] * 2, [((3,), torch.float64)] * 2, [((3,), torch.float32)], []):
        assert runs.step_taking(other) is None
