"""Whose memory a strip's values lie in: a view takes none of its own, and plans do not count any."""

from __future__ import annotations

import pytest
import torch
from live_bytes import LiveBytes
from small_functions import Fn, captured
from torch import Tensor, nn

from tvae.pipeline.engine.lower import lower
from tvae.pipeline.engine.passes import simplify
from tvae.pipeline.engine.plan.footprint import footprint
from tvae.pipeline.engine.plan.schedule import schedule
from tvae.pipeline.engine.run.execute import execute


def divided_by_its_length(m: nn.Module, x: Tensor) -> Tensor:
    h = m.conv(x)
    return h / h.amax(1, keepdim=True).expand_as(h)


def turned(m: nn.Module, x: Tensor) -> Tensor:
    h = m.conv(x)
    return torch.cat([h, h.swapaxes(0, 1).swapaxes(0, 1), h.exp()], 1)


@pytest.mark.parametrize(("fn", "views"), [(divided_by_its_length, {"expand_as"}), (turned, {"swapaxes"})])
@pytest.mark.parametrize("strip", [8, 64])
def test_views_take_no_memory(fn: Fn, views: set[str], strip: int) -> None:
    graph, module = captured(fn)
    graph, x = simplify(graph), torch.randn(1, 3, 64, 48)
    assert views <= {node.op for node in graph.nodes}
    sizes = graph.bind([tuple(x.shape)])
    assert sizes is not None
    plan = schedule(lower(graph, sizes, x.device), strip)
    weights = {**module.state_dict(), **graph.constants}
    with LiveBytes(weights.values()) as live:
        execute(plan, [x], weights)
    assert 0.95 * footprint(plan).device <= live.peak <= 1.05 * footprint(plan).device
