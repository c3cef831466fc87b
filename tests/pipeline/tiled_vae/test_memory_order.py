"""What a model reads by where it lies in memory: it finds there what lies there in the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tiny_vaes import relative_l2
from torch import Tensor, nn

from tvae.pipeline import TiledVAE
from tvae.pipeline.errors import UnsupportedOp

Block = Callable[["Model", Tensor], Tensor]


class Model(nn.Module):
    def __init__(self, block: Block) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.block = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1), block

    def encode(self, x: Tensor) -> Any:
        return self.block(self, self.first(x))

    decode = encode


def standardised(m: Model, h: Tensor) -> Tensor:
    """A view of weights that regroups their channels: of weights with channels last there is none."""
    kernel = m.second.weight.view(4, 2, 72).transpose(0, 1).contiguous().view(8, 8, 3, 3)
    return F.conv2d(h, kernel, padding=1)


def modulated(m: Model, h: Tensor) -> Tensor:
    n = h.shape[0]
    kernels = (m.second.weight[None] * h.mean((2, 3)).view(n, 1, 8, 1, 1)).view(8 * n, 8, 3, 3)
    return F.conv2d(h.reshape(1, 8 * n, *h.shape[2:]), kernels, padding=1, groups=n).view(h.shape)


def by_strides(m: Model, h: Tensor) -> Tensor:
    return m.second(h) + m.second.weight.as_strided((8, 1, 1), (5, 1, 1), 3)


def bits(m: Model, h: Tensor) -> Tensor:
    return m.second(h) + m.second.weight.view(torch.int16).float().atan().sum((1, 2, 3)).view_as(
        m.second.bias[:, None, None]
    )


def complex_numbers(m: Model, h: Tensor) -> Tensor:
    pairs = m.second(h).permute(0, 2, 3, 1).contiguous().view(h.shape[0], *h.shape[2:], 4, 2)
    return torch.view_as_real(torch.view_as_complex(pairs) * 1j).flatten(3).permute(0, 3, 1, 2)


def sorted_tokens(m: Model, h: Tensor) -> Tensor:
    tokens = torch.sort(m.second(h).permute(0, 2, 3, 1).contiguous(), 1)[0].view(h.shape[0], -1, 8)
    return tokens.transpose(1, 2).contiguous().view(h.shape)


def single_clip(m: Model, h: Tensor) -> Tensor:
    """Pooling that takes a value of four dimensions for a clip without batch."""
    return F.max_pool3d(m.second(h), (2, 1, 1))


def places_in_a_clip(m: Model, h: Tensor) -> Tensor:
    return F.max_pool3d(m.second(h), (2, 1, 1), return_indices=True)[0]


def blocks_of_pixels(m: Model, h: Tensor) -> Tensor:
    return torch.kron(m.second(h), torch.tensor([[1.0, -1.0], [0.5, 2.0]])[None, None])


def pixels_by_number(m: Model, h: Tensor) -> Tensor:
    y = m.second(h)
    return y * torch.take_along_dim(y, torch.tensor([7, 2, 5]))[2]


def map_by_strides(m: Model, h: Tensor) -> Tensor:
    y = torch.as_strided_scatter(m.second(h), h.new_zeros(3), (3,), (1,), 2)
    return y + torch.as_strided_copy(h, (3, 2), (2, 1), 1).sum()


WHOLE = (complex_numbers, sorted_tokens, places_in_a_clip, blocks_of_pixels, pixels_by_number, map_by_strides)
DIVIDED = (standardised, modulated, by_strides, bits, single_clip)


@pytest.mark.long
@torch.no_grad()
@pytest.mark.parametrize("block", DIVIDED + WHOLE)
def test_it_lies_in_the_order_of_the_model(block: Block) -> None:
    model, wide = Model(block).eval(), Model(block).eval()
    tiled = TiledVAE(model, "cpu", strip=3, allow_whole=block in WHOLE)
    for shape in ((1, 3, 9, 6), (2, 3, 8, 5), (1, 3, 1, 1)):
        x = torch.randn(shape)
        assert relative_l2(tiled.encode(x), wide.encode(x)) < 1e-5


def turned_by_strides(m: Model, h: Tensor) -> Tensor:
    return m.second(h) + m.second.weight.transpose(0, 1).as_strided((8, 1, 1), (5, 1, 1))


def part_by_strides(m: Model, h: Tensor) -> Tensor:
    return m.second(h) + m.second.weight[2:].as_strided((8, 1, 1), (5, 1, 1))


def turned_map_by_strides(m: Model, h: Tensor) -> Tensor:
    return h + torch.as_strided_copy(m.second(h).transpose(2, 3), (2, 1), (5, 1)).sum()


@torch.no_grad()
@pytest.mark.parametrize("block", [turned_by_strides, part_by_strides, turned_map_by_strides])
def test_memory_that_is_not_the_values_own_is_refused(block: Block) -> None:
    tiled = TiledVAE(Model(block).eval(), "cpu", allow_whole=True)
    with pytest.raises(UnsupportedOp, match=r"as_strided.*does not lie in the order"):
        tiled.encode(torch.zeros(1, 3, 6, 4))
