"""What a run leaves for the next one: the shares of single strips, and no memory that grows with the strips."""

from __future__ import annotations

import pytest
import torch
from one_op import CPU
from small_models import Residual, built, graph_of, image

from tvae.pipeline.engine.lower import lower
from tvae.pipeline.engine.plan.schedule import schedule
from tvae.pipeline.engine.run.execute import execute


@pytest.mark.parametrize(("strip", "kept"), [(12, True), (1, False)])
def test_shares_are_kept_of_single_strips_alone(strip: int, kept: bool) -> None:
    graph = graph_of(Residual)
    sizes = graph.bind([(2, 3, 12, 6)])
    assert sizes is not None
    plan = schedule(lower(graph, sizes, CPU), strip)
    weights = dict(built(Residual).named_parameters()) | graph.constants
    first, again = (execute(plan, [image(12)], weights)[0] for _ in range(2))
    assert first is not None
    assert again is not None
    assert torch.equal(first, again)
    assert bool(plan.shares) == kept
    assert all(len(found) == 1 for found in plan.shares.values())
