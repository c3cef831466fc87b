"""Functions of one small module and a picture, captured and run: what the passes are tested on."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from tvae.pipeline.engine.capture.capture import capture
from tvae.pipeline.engine.ir.graph import Graph
from tvae.pipeline.engine.lower import lower
from tvae.pipeline.engine.plan.schedule import schedule
from tvae.pipeline.engine.run.execute import execute

Fn = Callable[[nn.Module, Tensor], Tensor]


class Small(nn.Module):
    """A convolution for functions to call."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 3, 3, padding=1)


def run(graph: Graph, weights: Mapping[str, Tensor], x: Tensor, strip: int = 3) -> Tensor:
    """The graph's first output, strip by strip."""
    sizes = graph.bind([tuple(x.shape)])
    assert sizes is not None
    program = lower(graph, sizes, x.device)
    return execute(schedule(program, strip), [x], {**weights, **graph.constants})[0]


def captured(fn: Fn) -> tuple[Graph, nn.Module]:
    """The graph as the exporter gives it, and the module."""
    module = Small().eval()
    return capture(module, lambda x: [fn(module, x)], [torch.zeros(1, 3, 6, 6)]), module
