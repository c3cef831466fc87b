"""Models whose Python code needs sizes as numbers are captured at several concrete sizes, and run in strips."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tvae.pipeline import TiledVAE
from tvae.pipeline.errors import UnsupportedOp


class Sized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.norm, self.window = nn.Conv2d(3, 4, 3, padding=1), nn.GroupNorm(2, 4), 4

    def encode(self, x: Tensor) -> Tensor:
        return self.part(self.norm(self.conv(x)))

    decode = encode

    def part(self, h: Tensor) -> Tensor:
        raise NotImplementedError


class Fractions(Sized):
    def part(self, h: Tensor) -> Tensor:
        return F.interpolate(h, size=(int(h.shape[2] * 0.75), int(h.shape[3] / 2)), mode="bilinear")


class Windows(Sized):
    """Pads to whole windows, in NumPy."""

    def part(self, h: Tensor) -> Tensor:
        height, width = (int(np.ceil(n / self.window)) * self.window for n in h.shape[2:])
        return F.pad(h, [0, width - h.shape[3], 0, height - h.shape[2]])


class Tokens(Sized):
    """Attention over pixels whose number is a NumPy integer."""

    def part(self, h: Tensor) -> Tensor:
        batch, channels, *_ = h.shape
        tokens = h.reshape(batch, channels, int(np.prod(h.shape[2:]))).transpose(1, 2)[:, None]
        mixed = F.scaled_dot_product_attention(tokens, tokens, tokens)
        return mixed[:, 0].transpose(1, 2).reshape(h.shape)


class Loop(Sized):
    """A loop over rows has another graph at each height."""

    def part(self, h: Tensor) -> Tensor:
        return torch.stack([h[:, :, n] * 2 for n in range(h.shape[2])], 2)


class Scale(Sized):
    """A factor computed of the height is another number at each height."""

    def part(self, h: Tensor) -> Tensor:
        return h / math.sqrt(int(h.shape[2]))


class Table(Sized):
    def part(self, h: Tensor) -> Tensor:
        return h * {16: 2.0, 21: 3.0}[int(h.shape[2])]


IN_STRIPS = (Fractions, Windows, Tokens)
WHOLE = (Loop, Scale, Table)


def error(result: Tensor, reference: Tensor) -> float:
    return float((result - reference).norm() / reference.norm())


@torch.no_grad()
@pytest.mark.parametrize("kind", [*IN_STRIPS, *WHOLE], ids=lambda kind: kind.__name__)
def test_each_size_gives_the_models_own_numbers(kind: type[Sized]) -> None:
    model = kind().eval()
    double = copy.deepcopy(model).double()
    tiled = TiledVAE(model, "cpu", strip=3, allow_whole=kind in WHOLE)
    for size in ((16, 12), (21, 20)):
        x = torch.randn(1, 3, *size)
        assert error(tiled.encode(x), double.encode(x.double())) < 1e-5
        plan = tiled.plan((1, 3, *size), "encode")
        assert bool(plan.whole) is (kind in WHOLE)
        assert plan.whole or plan.strips > 1


@torch.no_grad()
@pytest.mark.parametrize("kind", WHOLE, ids=lambda kind: kind.__name__)
def test_another_graph_at_each_height_is_refused_with_its_line(kind: type[Sized]) -> None:
    with pytest.raises(UnsupportedOp, match="height"):
        TiledVAE(kind().eval(), "cpu", strip=3).encode(torch.randn(1, 3, 16, 12))


class Reported(Sized):
    """Returns its height as a number of Python's own."""

    def encode(self, x: Tensor) -> Any:
        return {"z": self.conv(x), "rows": int(x.shape[2]) * 2}


@torch.no_grad()
def test_a_number_that_is_returned_is_the_one_of_this_size() -> None:
    tiled = TiledVAE(Reported().eval(), "cpu", allow_whole=True)
    for height in (16, 21):
        assert tiled.encode(torch.randn(1, 3, height, 12))["rows"] == 2 * height


@torch.no_grad()
def test_a_graph_that_was_refused_is_not_kept_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(UnsupportedOp):
        TiledVAE(Loop().eval(), "cpu", strip=3).encode(torch.randn(1, 3, 16, 12))
    assert [*tmp_path.rglob("*.json")] == []
    TiledVAE(Windows().eval(), "cpu", strip=3).encode(torch.randn(1, 3, 16, 12))
    assert len([*tmp_path.rglob("*.json")]) == 1
