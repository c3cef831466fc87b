"""Functions of PyTorch that take sizes keep them symbolic: one graph for every size."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from small_functions import Small
from torch import Tensor

from tvae.pipeline.engine.capture.capture import capture
from tvae.pipeline.engine.lower import lower
from tvae.pipeline.engine.passes import optimise, simplify
from tvae.pipeline.engine.plan.schedule import schedule
from tvae.pipeline.engine.run.execute import execute
from tvae.pipeline.errors import UnsupportedOp

Fn = Callable[[Tensor], Tensor]


def rows_numbered(h: Tensor) -> Tensor:
    return h + torch.arange(torch.tensor(h.shape)[2])[:, None]


def test_one_graph_serves_every_size() -> None:
    module = Small().eval()
    graph = optimise(
        simplify(capture(module, lambda x: [rows_numbered(module.conv(x))], [torch.zeros(1, 3, 6, 6)])),
        subpixel=True,
        bias=False,
    )
    for height, width in ((7, 5), (12, 9)):
        x = torch.randn(1, 3, height, width)
        sizes = graph.bind([tuple(x.shape)])
        assert sizes is not None
        weights = {**module.state_dict(), **graph.constants}
        (got,) = execute(schedule(lower(graph, sizes, x.device), 3), [x], weights)
        with torch.no_grad():
            torch.testing.assert_close(got, rows_numbered(module.conv(x)), rtol=1e-5, atol=1e-5)


def test_a_tensor_that_was_written_to_is_not_read_as_it_was() -> None:
    module = Small().eval()

    def fn(x: Tensor) -> list[Tensor]:
        sizes = torch.tensor(x.shape)
        sizes[2] = 5
        return [module.conv(x) * sizes.prod().item()]

    with pytest.raises(UnsupportedOp, match="depends on values"):
        capture(module, fn, [torch.zeros(1, 3, 6, 6)])
