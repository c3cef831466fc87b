"""First steps leave their caches where the steps after them read them, and nobody's caches change in their hands."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch
from recorded_steps import first_step, places, record, step
from torch import Tensor

from tvae.pipeline.session.recorded_first_step import RecordedFirstStep
from tvae.pipeline.session.recorded_step import RecordedStep


@pytest.mark.parametrize("seed", range(8))
def test_clips_in_turn(seed: int) -> None:
    """Several clips, one step of one at a time, which end now and then and begin anew."""
    draw = random.Random(seed)
    later = RecordedStep(step, record, places())
    first = RecordedFirstStep(first_step, record, later)
    caches: list[list[Tensor]] = [[], [], []]
    alone: list[list[Tensor]] = [[], [], []]
    begun = begun_eagerly = 0
    for _ in range(120):
        n = draw.choice([0, 0, 0, 0, 1, 2])
        if draw.random() < 0.2:
            caches[n], alone[n] = [], []
        given: list[Tensor] = [torch.full((3,), draw.random()), *caches[n]]
        recorded, plainly = (later, step) if caches[n] else (first, first_step)
        want, *alone[n] = plainly([given[0], *alone[n]], ())
        caches[n] = []
        takes = recorded.takes(given)
        if recorded is first:
            begun, begun_eagerly = begun + takes, begun_eagerly + (not takes)
        result, *caches[n] = recorded.replay(given) if takes else plainly(given, ())
        del given
        assert torch.equal(result, want)
        for mine, exact in zip(caches, alone, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(mine, exact, strict=True))
    assert begun > 1
    assert begun_eagerly > 1


def test_the_next_step_copies_nothing() -> None:
    later = RecordedStep(step, record, places())
    first = RecordedFirstStep(first_step, record, later)
    _, *caches = first.replay([torch.ones(3)])
    assert [t.data_ptr() for t in caches] == [t.data_ptr() for t in later.begins_with]
    assert later.takes([torch.ones(3), *caches])
    assert not later.free
    assert not first.takes([torch.ones(3)])
    _, *caches = later.replay([torch.ones(3), *caches])
    assert {t.data_ptr() for t in caches}.isdisjoint(t.data_ptr() for t in later.begins_with)
    assert not first.takes([torch.ones(3)]), "the clip goes on"
    del caches
    assert first.takes([torch.ones(3)])


def test_it_goes_with_the_step_after_it() -> None:
    """Whose memory it writes to."""
    later = RecordedStep(step, record, places())
    first = RecordedFirstStep(first_step, record, later)
    assert not first.alone
    del later
    assert first.alone
    assert not first.takes([torch.ones(3)])


def test_which_caches_a_step_takes() -> None:
    later = RecordedStep(step, record, places())
    assert later.takes_caches == [((3,), torch.float32)] * 2


def test_a_refused_recording_is_told() -> None:
    def refused(*_: object) -> None:
        raise RuntimeError("no room")

    later = RecordedStep(step, record, places())
    with pytest.raises(RuntimeError, match="no room"):
        RecordedFirstStep(first_step, refused, later)  # type: ignore[arg-type]


def plain_step(inputs: Sequence[Tensor]) -> list[Tensor]:
    return step(inputs, ())


def test_the_stand_ins_do_something() -> None:
    result, *caches = first_step([torch.ones(3)], ())
    assert len(caches) == 2
    assert not torch.equal(plain_step([torch.ones(3), *caches])[0], result)
