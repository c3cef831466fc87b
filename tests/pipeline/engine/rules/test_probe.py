"""Sizes at which to see what grows with the rows: where a graph serves few of them, too."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tvae.pipeline import TiledVAE
from tvae.pipeline.engine.ir.graph import Graph, Meta, Node, Size
from tvae.pipeline.engine.rules.graph_sizes import GraphSizes


def graph(*guards: str) -> Graph:
    shape = (1, 3, Size("h"), Size("w"))
    return Graph([Node("input", "x", outputs=(Meta(shape, torch.float32),))], [0], [0], list(guards), "h")


@pytest.mark.parametrize(
    ("guards", "height", "width", "wide"),
    [
        ((), 30, 4, True),
        (("1 + (w - 1)//4 == 1",), 256, 4, True),
        (("w == 4",), 256, 4, False),
        (("h % 4 == 3",), 255, 9, True),
        (("h % 13 == 7", "w % 11 == 3"), 59, 3, True),
        (("h % 64 == 63",), 127, 9, True),
        (("h % 5 == 2", "w > 8", "w < 13", "w != h"), 42, 11, True),
    ],
)
def test_sizes_of_which_a_graph_serves_few(guards: tuple[str, ...], height: int, width: int, wide: bool) -> None:
    at = GraphSizes(graph(*guards), {"h": height, "w": width})
    assert at.serves_others
    assert [at.follows(Size(size)) for size in ("h", "2*h*w", "w")] == [True, True, False]
    assert [at.is_wide(Size(size)) for size in ("w", "h")] == [wide, False]


@pytest.mark.parametrize("guard", ["h == 30", "h//8 == 3"])
def test_one_height_or_a_few(guard: str) -> None:
    assert not GraphSizes(graph(guard), {"h": 30, "w": 8}).serves_others


class Remainders(nn.Module):
    """Another border by the remainder of the height, and a result of a single column where the input has up to four."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.norm = nn.Conv2d(3, 8, 3, (1, 4), padding=1), nn.GroupNorm(4, 8)

    def encode(self, x: Tensor) -> Tensor:
        more = x.shape[2] % 4
        if more == 3:
            x = F.pad(x, (0, 0, 0, 1))
        elif more:
            x = F.pad(x, (0, 0, 2, 2 - more), mode="replicate")
        return F.avg_pool2d(self.norm(self.conv(x)), (4, 1))

    decode = encode


@pytest.mark.long
def test_a_model_with_a_graph_for_each_remainder_is_cut_at_each() -> None:
    model, wide = Remainders().eval(), Remainders().eval().double()
    tiled = TiledVAE(model, "cpu", strip=2)
    for height, width in ((51, 10), (255, 3), (50, 4), (49, 9), (48, 2)):
        x = torch.randn(2, 3, height, width)
        with torch.no_grad():
            want = wide.encode(x.double())
        assert (tiled.encode(x) - want).norm() < 1e-5 * want.norm()
        assert tiled.plan(tuple(x.shape), "encode").strips > 5
