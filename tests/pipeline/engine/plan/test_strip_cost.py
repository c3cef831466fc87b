"""Whose memory a strip's values lie in: a view takes none of its own, and plans do not count any."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from live_bytes import LiveBytes
from small_functions import Fn, captured
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

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


class _Pads(TorchDispatchMode):
    """How often something was copied to have a border."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func.overloadpacket is torch.ops.aten.constant_pad_nd
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("stride", "padding", "height"), [(2, 1, 65), (3, 1, 67), (3, 2, 66)])
def test_the_lower_border_of_strides_is_the_convolutions_own(stride: int, padding: int, height: int) -> None:
    """No strip is copied to have one, in memory that no plan knows."""
    graph, module = captured(lambda m, x: F.conv2d(x, m.conv.weight, None, stride, padding))
    x = torch.randn(1, 3, height, 20)
    sizes = graph.bind([tuple(x.shape)])
    assert sizes is not None
    weights = {**module.state_dict(), **graph.constants}
    with _Pads() as pads, torch.no_grad():
        (found,) = execute(schedule(lower(graph, sizes, x.device), 4), [x], weights)
        want = F.conv2d(x, module.state_dict()["conv.weight"], None, stride, padding)
    assert pads.count == 0
    assert torch.allclose(found, want, atol=1e-6)
