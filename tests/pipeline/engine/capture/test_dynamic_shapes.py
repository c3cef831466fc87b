"""Sizes of several inputs that are multiples of one another are so from the first operation on."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tvae.pipeline.engine.capture.capture import capture
from tvae.pipeline.engine.ir.graph import Graph

Size = tuple[int, int]


class LookedUp(nn.Module):
    """Finds a picture's features for a map by the text of its shape, and asks of no two sizes whether they are equal,
    as diffusers' ``MaskConditionDecoder`` does."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.down = nn.ModuleList(
            [nn.Conv2d(3, 4, 3, padding=1), *(nn.Conv2d(4, 4, 4, stride=2, padding=1) for _ in range(2))]
        )

    def forward(self, z: Tensor, picture: Tensor) -> Tensor:
        found: dict[str, Tensor] = {}
        for layer in self.down:
            picture = layer(picture)
            found[str(tuple(picture.shape))] = picture
        for _ in range(2):
            z = F.interpolate(z + found[str(tuple(z.shape))], scale_factor=2.0)
        return (1 - z) * found[str(tuple(z.shape))]


def inputs(height: int, width: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(height)
    return [
        torch.randn(1, 4, height, width, generator=generator),
        torch.randn(1, 3, 4 * height, 4 * width, generator=generator),
    ]


def captured(size: Size) -> Graph:
    model = LookedUp()
    return capture(model, lambda *xs: [model(*xs)], inputs(*size))


@pytest.mark.parametrize(
    ("size", "served", "others"),
    [
        ((8, 6), [(8, 6), (6, 8), (5, 5), (31, 2)], []),
        ((7, 1), [(7, 1), (2, 1)], [(7, 2), (1, 1)]),
        ((1, 5), [(1, 5), (1, 9)], [(2, 5)]),
        ((1, 1), [(1, 1)], [(2, 2)]),
    ],
)
def test_a_model_that_finds_things_by_the_text_of_shapes(size: Size, served: list[Size], others: list[Size]) -> None:
    graph = captured(size)
    assert graph.fixed is None
    for height, width in served:
        shapes = [tuple(x.shape) for x in inputs(height, width)]
        assert graph.bind(shapes) is not None
        taller = [shapes[0], (1, 3, 4 * height + 4, 4 * width)]
        assert graph.bind(taller) is None, "another multiple"
    for other in others:
        assert graph.bind([tuple(x.shape) for x in inputs(*other)]) is None


def test_sizes_that_have_nothing_in_common_are_symbols_of_their_own() -> None:
    module = nn.Conv2d(4, 4, 3)
    graph = capture(module, lambda x, y: [module(x), y + 1], [torch.zeros(1, 4, 8, 6), torch.zeros(1, 4, 9, 7)])
    assert graph.bind([(1, 4, 5, 5), (1, 4, 20, 3)]) is not None
