"""Convolutions of clips of a few channels as those of pictures of more: which they are, and the numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tvae.kernels import folded_frames
from tvae.kernels.cuda.conv3d import conv3d as cuda_conv3d
from tvae.kernels.folded_frames import conv3d, suits

LAST = torch.channels_last_3d
ONCE: Any = ([1, 1, 1], [0, 1, 1], [1, 1, 1], 1)


class Card(Tensor):
    """A tensor that says that it is on a card."""

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True


def clip(
    few: int = 3,
    outer: int = 64,
    sizes: tuple[int, int, int] = (5, 9, 7),
    kernel: tuple[int, int, int] = (3, 3, 3),
    dtype: torch.dtype = torch.bfloat16,
    n: int = 1,
) -> tuple[Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(few)
    x = torch.randn(n, few, *sizes, generator=random).to(dtype).contiguous(memory_format=LAST)
    weight = torch.randn(outer, few, *kernel, generator=random).to(dtype).contiguous(memory_format=LAST)
    return x.as_subclass(Card), weight, torch.randn(outer, generator=random).to(dtype)


@pytest.fixture(autouse=True)
def every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Is worth it."""
    monkeypatch.setattr(folded_frames, "_ENOUGH", 0)


@given(
    n=st.integers(1, 2),
    few=st.integers(2, 15),
    kernel=st.tuples(st.integers(2, 4), st.integers(1, 4), st.integers(1, 4)),
    more=st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 4)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 2), st.integers(1, 2)),
    with_bias=st.booleans(),
    dtype=st.sampled_from([torch.bfloat16, torch.float16]),
    padded=st.tuples(st.integers(0, 1), st.integers(0, 1)),
)
def test_the_numbers_of_the_model(
    n: int,
    few: int,
    kernel: tuple[int, int, int],
    more: tuple[int, int, int],
    stride: tuple[int, int, int],
    with_bias: bool,
    dtype: torch.dtype,
    padded: tuple[int, int],
) -> None:
    """Any number of frames and strides; the error of one rounding, where the bias is no second one."""
    t, h, w = (k + m for k, m in zip(kernel, more, strict=True))
    x, weight, bias = clip(few, 2 * few * kernel[0] + 16, (t, h, w), kernel, dtype, n)
    padding = [0, *(p * ((k - 1) // 2) for p, k in zip(padded, kernel[1:], strict=True))]
    assert suits(x, weight, stride, padding, [1, 1, 1], 1)
    shift = bias if with_bias else None
    wide = (x.as_subclass(Tensor).double(), weight.double(), None if shift is None else shift.double())
    want = F.conv3d(*wide, stride, padding)
    y = conv3d(x, weight, shift, stride, padding)
    assert y.shape == want.shape
    assert y.dtype == dtype
    assert float((y.double() - want).norm()) <= (4e-3 if dtype == torch.bfloat16 else 5e-4) * float(want.norm())


def test_eights_have_room_for_the_bias() -> None:
    x, weight, bias = clip(8, 64)
    want = F.conv3d(x.as_subclass(Tensor).double(), weight.double(), bias.double(), *ONCE[:2])
    y = conv3d(x, weight, bias, *ONCE[:2])
    assert float((y.double() - want).norm()) <= 4e-3 * float(want.norm())


def test_the_result_has_its_channels_innermost() -> None:
    x, weight, bias = clip(n=2)
    assert conv3d(x, weight, bias, *ONCE[:2]).is_contiguous(memory_format=LAST)


def test_the_library_is_asked_for_pictures_in_eights(monkeypatch: pytest.MonkeyPatch) -> None:
    made, plain = [], torch.conv2d

    def noted(x: Tensor, weight: Tensor, bias: Tensor | None, *more: Any) -> Tensor:
        made.append((tuple(x.shape), tuple(weight.shape), bias))
        assert all(each.is_contiguous(memory_format=torch.channels_last) for each in (x, weight))
        return plain(x, weight, bias, *more)

    monkeypatch.setattr(folded_frames.library_convolutions, "conv2d", noted)
    x, weight, bias = clip(n=2)
    conv3d(x, weight, bias, *ONCE[:2])
    x, weight, bias = clip(12, 160, kernel=(3, 1, 1))
    conv3d(x, weight, bias, [2, 1, 1], [0, 0, 0])
    assert made == [((6, 16, 9, 7), (64, 16, 3, 3), None), ((2, 40, 9, 7), (160, 40, 1, 1), None)]


def test_which_it_is_for(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, _ = clip()
    assert suits(x, weight, *ONCE)
    assert suits(x, clip(outer=32)[1], *ONCE)
    assert not suits(x, clip(outer=31)[1], *ONCE), "too much to copy"
    assert not suits(*clip(16, 512)[:2], *ONCE), "many channels"
    assert not suits(*clip(kernel=(1, 3, 3))[:2], *ONCE), "frames that are alone"
    assert not suits(x, weight, *ONCE[:3], 3)
    assert not suits(x, weight, [1, 1, 1], [0, 1, 1], [1, 2, 1], 1)
    assert not suits(x, weight, [1, 1, 1], [1, 1, 1], [1, 1, 1], 1)
    assert not suits(x, weight, [1, 1, 1], [0, 2, 1], [1, 1, 1], 1), "no tap is always inside"
    assert not suits(x, weight, [1, 1, 1], [0, 1, 2], [1, 1, 1], 1)
    assert not suits(*clip(dtype=torch.float32)[:2], *ONCE)
    assert not suits(x.as_subclass(Tensor), weight, *ONCE)
    assert not suits(x.contiguous(memory_format=torch.contiguous_format), weight, *ONCE)
    monkeypatch.setattr(folded_frames, "_ENOUGH", 5e9)
    assert not suits(x, weight, *ONCE), "small ones do not pay"


def test_the_level_for_gpus_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, _ = clip()
    monkeypatch.setattr(folded_frames, "conv3d", lambda *_: "folded")
    assert cuda_conv3d(x, weight, None, *ONCE) == "folded"
    assert cuda_conv3d(x.as_subclass(Tensor), weight, None, *ONCE).shape == (1, 64, 3, 9, 7)
