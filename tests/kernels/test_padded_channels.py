"""Convolutions whose channels are no multiple of eight: which have more, and the numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tvae.kernels import padded_channels
from tvae.kernels.cuda.conv3d import conv3d as cuda_conv3d
from tvae.kernels.padded_channels import conv3d, suits

LAST = torch.channels_last_3d
WAYS = [
    ([1, 1, 1], [0, 1, 1], [1, 1, 1], 1),
    ([2, 1, 1], [0, 0, 0], [1, 1, 1], 1),
    ([1, 1, 1], [2, 2, 2], [2, 2, 2], 1),
]


class Card(Tensor):
    """A tensor that says that it is on a card."""

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True


def clip(outer: int, dtype: torch.dtype = torch.bfloat16) -> tuple[Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(outer)
    x = torch.randn(2, 16, 6, 9, 7, generator=random).to(dtype).contiguous(memory_format=LAST)
    weight = torch.randn(outer, 16, 3, 3, 3, generator=random).to(dtype).contiguous(memory_format=LAST)
    return x.as_subclass(Card), weight, torch.randn(outer, generator=random).to(dtype)


@pytest.fixture(autouse=True)
def every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Is worth it."""
    monkeypatch.setattr(padded_channels, "_ENOUGH", 0)


@pytest.mark.parametrize("outer", [3, 12, 31])
@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("with_bias", [False, True])
def test_the_numbers_of_the_model(outer: int, way: Any, with_bias: bool) -> None:
    x, weight, bias = clip(outer)
    shift = bias if with_bias else None
    want = F.conv3d(x.as_subclass(Tensor).double(), weight.double(), None if shift is None else shift.double(), *way)
    y = conv3d(x, weight, shift, *way)
    assert y.shape == want.shape
    assert y.is_contiguous(memory_format=LAST)
    assert float((y.double() - want).norm() / want.norm()) < 4e-3


def test_the_library_is_asked_for_channels_in_eights(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, bias = clip(12)
    made = []
    plain = torch.conv3d

    def noted(x: Tensor, weight: Tensor, bias: Tensor, *more: Any) -> Tensor:
        made.append((weight.shape[0], len(bias), weight.is_contiguous(memory_format=LAST)))
        return plain(x, weight, bias, *more)

    monkeypatch.setattr(padded_channels.library_convolutions, "conv3d", noted)
    conv3d(x, weight, bias, *WAYS[0])
    assert made == [(16, 16, True)]


def test_which_it_is_for(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, _ = clip(12)
    assert suits(x, weight, 1)
    assert not suits(x, weight, 2)
    assert not suits(x, clip(16)[1], 1)
    assert not suits(clip(12, torch.float32)[0], weight, 1)
    assert not suits(x.as_subclass(Tensor), weight, 1)
    assert not suits(x.contiguous(memory_format=torch.contiguous_format), weight, 1)
    monkeypatch.setattr(padded_channels, "_ENOUGH", 5e9)
    assert not suits(x, weight, 1), "small ones do not pay"


def test_the_level_for_gpus_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, _ = clip(12)
    monkeypatch.setattr(padded_channels, "conv3d", lambda *_: "padded")
    assert cuda_conv3d(x, weight, None, *WAYS[0]) == "padded"
    assert cuda_conv3d(x.as_subclass(Tensor), weight, None, *WAYS[0]).shape == (2, 12, 4, 9, 7)
