"""Pictures that a model pads to the size of one window: all of their rows lie in one row of windows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tiny_vaes import relative_l2
from torch import Tensor, nn

from tvae.pipeline import TiledVAE

_SIZE = 4


class Windows(nn.Module):
    """Attention inside of windows with channels last, as in Swin transformers, and a residual sum."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.patches, self.qkv = nn.Conv2d(3, 4, 2, 2), nn.Linear(4, 12)

    def encode(self, x: Tensor) -> Any:
        h = self.patches(x)
        n, c, height, width = h.shape
        padded = F.pad(h.permute(0, 2, 3, 1), (0, 0, 0, -width % _SIZE, 0, -height % _SIZE))
        _, down, across, _ = padded.shape
        split = padded.view(n, down // _SIZE, _SIZE, across // _SIZE, _SIZE, c)
        tokens = split.permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, _SIZE * _SIZE, c)
        q, k, v = self.qkv(tokens).chunk(3, -1)
        mixed = ((q @ k.mT).softmax(-1) @ v).view(n, down // _SIZE, across // _SIZE, _SIZE, _SIZE, c)
        back = mixed.permute(0, 1, 3, 2, 4, 5).contiguous().view(n, down, across, c)[:, :height, :width]
        return h + back.permute(0, 3, 1, 2)

    decode = encode


@pytest.mark.slow
@torch.no_grad()
@pytest.mark.parametrize("strip", [1, 3])
@pytest.mark.parametrize("batch", [1, 2])
def test_strips_are_lower_than_the_window(strip: int, batch: int) -> None:
    model = Windows().eval()
    tiled = TiledVAE(model, "cpu", strip=strip)
    for height, width in ((4, 4), (8, 8), (26, 4), (6, 30), (2, 6)):
        x = torch.randn(batch, 3, height, width)
        assert relative_l2(tiled.encode(x), model.encode(x)) < 1e-5
