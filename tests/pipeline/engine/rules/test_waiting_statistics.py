"""Statistics of strips wait for the end block by block, and are merged where they are many."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from one_op import CPU
from small_models import Residual, graph_of

from tvae.kernels.prebuild import rehearsal
from tvae.pipeline.engine.lower import lower
from tvae.pipeline.engine.rules import norm


@pytest.mark.parametrize("why", ["few", "many", "a rehearsal"])
def test_blocks_are_merged_where_they_are_many_and_in_rehearsals(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rehearsal has two strips of few rows: what it does not ask for is built while a large picture waits."""
    graph = graph_of(Residual)
    sizes = graph.bind([(2, 3, 12, 6)])
    assert sizes is not None
    (reduction,) = (op.reduction for op in lower(graph, sizes, CPU).ops if op.reduction is not None)
    assert reduction.take is not None
    first, second = torch.rand(2, 2, 1, 3, 8, dtype=torch.float64).add(1).unbind(0)
    if why == "many":
        monkeypatch.setattr(norm, "_MOST_BYTES", first.nbytes)
    with rehearsal() if why == "a rehearsal" else nullcontext():
        found = reduction.take(reduction.take(None, first), second)
    assert len(found) == (2 if why == "few" else 1)
    count, mean, _ = torch.cat(found, 1).unbind(2)
    counts, means = torch.stack([first[:, 0, 0], second[:, 0, 0]]), torch.stack([first[:, 0, 1], second[:, 0, 1]])
    assert torch.allclose(count.sum(1), counts.sum(0))
    assert torch.allclose((count * mean).sum(1), (counts * means).sum(0))
