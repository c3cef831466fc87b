"""Replays of a step leave the caches in the recording: nobody's caches change in their hands."""

from __future__ import annotations

import random

import pytest
import torch
from recorded_steps import places, record, step
from torch import Tensor

from tvae.pipeline.session.recorded_step import RecordedStep


def begun(draw: random.Random) -> list[Tensor]:
    return [torch.full((3,), draw.random()) for _ in range(2)]


@pytest.mark.parametrize("seed", range(8))
def test_clips_in_turn(seed: int) -> None:
    """Several clips, one step of one at a time, some of which end; each has what it would have alone."""
    draw = random.Random(seed)
    recorded = RecordedStep(step, record, places())
    caches = [begun(draw) for _ in range(3)]
    alone = [[t.clone() for t in each] for each in caches]
    replays = 0
    for _ in range(60):
        n = draw.choice([0, 0, 0, 1, 2])
        if draw.random() < 0.1:
            caches[n] = begun(draw)
            alone[n] = [t.clone() for t in caches[n]]
        chunk = torch.full((3,), draw.random())
        given = [chunk, *caches[n]]
        caches[n] = []
        takes = recorded.takes(given)
        replays += takes
        result, *caches[n] = recorded.replay(given) if takes else step(given)
        del given
        want, *alone[n] = step([chunk, *alone[n]])
        assert torch.equal(result, want)
        for mine, exact in zip(caches, alone, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(mine, exact, strict=True))
    assert 10 < replays < 60


def test_what_is_held_is_not_written_to() -> None:
    recorded = RecordedStep(step, record, places())
    one = [torch.ones(3) for _ in range(3)]
    _, *held = recorded.replay(one)
    kept = [t.clone() for t in held]
    assert not recorded.takes([torch.zeros(3)] * 3), "another clip's step"
    assert recorded.takes([torch.zeros(3), *held])
    assert all(torch.equal(a, b) for a, b in zip(held, kept, strict=True))
    del held
    assert recorded.takes([torch.zeros(3)] * 3), "the clip is over"
    assert not recorded.takes([torch.zeros(3), torch.zeros(5), torch.zeros(3)]), "rows of all ranks"


def test_which_steps_fit() -> None:
    first, other = ((1, 2), torch.float32), ((1, 3), torch.float32)
    assert RecordedStep.fits([first, other], [first, other])
    assert not RecordedStep.fits([first, other], [other, first])
    assert not RecordedStep.fits([], [])
    assert not RecordedStep.fits([], [first])
