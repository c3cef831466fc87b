"""What a run leaves for the next one: the shares of single strips, and no memory that grows with the strips."""

from __future__ import annotations

import pytest
import torch
from one_op import CPU
from small_models import Residual, built, graph_of, image

from tvae.pipeline.engine.lower import lower
from tvae.pipeline.engine.plan.schedule import Schedule, Segment, movable, placed, schedule
from tvae.pipeline.engine.run import execute as executing
from tvae.pipeline.engine.run.execute import execute
from tvae.pipeline.engine.run.one_strip import OneStrip


def twice(strip: int, *, away: bool = False) -> Schedule:
    """The schedule of two runs that gave the same."""
    graph = graph_of(Residual)
    sizes = graph.bind([(2, 3, 12, 6)])
    assert sizes is not None
    plan = schedule(lower(graph, sizes, CPU), strip)
    plan = placed(plan, dict.fromkeys(movable(plan), "host")) if away else plan
    weights = dict(built(Residual).named_parameters()) | graph.constants
    first, again = (execute(plan, [image(12)], weights)[0] for _ in range(2))
    assert first is not None
    assert again is not None
    assert torch.equal(first, again)
    return plan


@pytest.mark.parametrize(("strip", "kept"), [(12, True), (1, False)])
def test_shares_are_kept_of_single_strips_alone(strip: int, kept: bool) -> None:
    plan = twice(strip, away=True)
    assert bool(plan.shares) == kept
    assert all(len(found) == 1 for found in plan.shares.values())


def test_what_a_segment_of_one_strip_does_is_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Segment] = []

    class Counted(OneStrip):
        def __init__(self, plan: Schedule, segment: Segment) -> None:
            made.append(segment)
            super().__init__(plan, segment)

    monkeypatch.setattr(executing, "OneStrip", Counted)
    plan = twice(12)
    assert made == [*plan.segments]
    assert not plan.shares
    made.clear()
    twice(1)
    assert not made
