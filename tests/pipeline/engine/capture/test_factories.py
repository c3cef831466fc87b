"""Arithmetic on sizes that goes through tensors stays arithmetic on sizes: one graph for every size."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from small_functions import Small
from torch import Tensor

from tvae.pipeline.engine.capture.capture import capture
from tvae.pipeline.engine.lower import lower
from tvae.pipeline.engine.passes import optimise, simplify
from tvae.pipeline.engine.plan.schedule import schedule
from tvae.pipeline.engine.run.execute import execute
from tvae.pipeline.errors import UnsupportedOp

Fn = Callable[[Tensor], Tensor]


def product(h: Tensor) -> Tensor:
    return h / torch.prod(torch.tensor(h.shape[2:])).item()


def product_in_a_shape(h: Tensor) -> Tensor:
    return h.reshape(h.shape[0], h.shape[1], torch.tensor(h.shape[-2:]).prod().item()).view_as(h) * 2


def floats(h: Tensor) -> Tensor:
    sizes = torch.tensor(h.shape, dtype=torch.float32)
    return h * (1 / sizes[2].item()) + sizes[-1].item()


def one(h: Tensor) -> Tensor:
    return h / torch.tensor(h.shape[2]).item()


def added(h: Tensor) -> Tensor:
    return h / torch.sum(torch.tensor([h.shape[2], 3, h.shape[3]])).item()


def listed(h: Tensor) -> Tensor:
    height, width = torch.tensor(h.shape[-2:]).tolist()
    return h * height + width


def sized_like_another(h: Tensor) -> Tensor:
    return h / h.new_tensor([h.shape[2], h.shape[3]]).prod() + torch.as_tensor(h.size())[2:].sum().item()


def padded(h: Tensor) -> Tensor:
    """To whole windows, in tensors."""
    sizes = torch.as_tensor(h.shape[-2:])
    down, across = (torch.ceil(sizes / 4).long() * 4 - sizes).unbind(0)
    return F.pad(h, [0, across, 0, down])


def shrunk(h: Tensor) -> Tensor:
    sizes = torch.tensor(h.shape[2:]) // 2
    return F.interpolate(h, size=(sizes[0], sizes[1])) * sizes.max().item()


def rows_numbered(h: Tensor) -> Tensor:
    return h + torch.arange(torch.tensor(h.shape)[2])[:, None]


def computed(h: Tensor) -> Tensor:
    a, b = torch.tensor(h.shape[2]), torch.tensor(h.shape[3])
    least = torch.minimum(a, b) % 5 - (-a) * 2
    return h * torch.stack([least, 1 + b]).sum().item() / torch.floor(torch.sqrt(a * 1.0)).item()


@pytest.mark.parametrize(
    "fn",
    [
        *(product, product_in_a_shape, floats, one, added),
        *(listed, sized_like_another, padded, shrunk, rows_numbered, computed),
    ],
    ids=lambda f: f.__name__,
)
def test_one_graph_serves_every_size(fn: Fn) -> None:
    module = Small().eval()
    graph = optimise(
        simplify(capture(module, lambda x: [fn(module.conv(x))], [torch.zeros(1, 3, 6, 6)])), subpixel=True, bias=False
    )
    for height, width in ((7, 5), (12, 9)):
        x = torch.randn(1, 3, height, width)
        sizes = graph.bind([tuple(x.shape)])
        assert sizes is not None
        weights = {**module.state_dict(), **graph.constants}
        (got,) = execute(schedule(lower(graph, sizes, x.device), 3), [x], weights)
        with torch.no_grad():
            torch.testing.assert_close(got, fn(module.conv(x)), rtol=1e-5, atol=1e-5)


def test_a_tensor_that_was_written_to_is_not_read_as_it_was() -> None:
    module = Small().eval()

    def fn(x: Tensor) -> list[Tensor]:
        sizes = torch.tensor(x.shape)
        sizes[2] = 5
        return [module.conv(x) * sizes.prod().item()]

    with pytest.raises(UnsupportedOp, match="depends on values"):
        capture(module, fn, [torch.zeros(1, 3, 6, 6)])
