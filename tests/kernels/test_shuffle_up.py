"""The definition of repeated channels as pixels: its layout, and what it does not copy."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from torch import Tensor

from tvae.kernels.operations.shuffle_up import shuffle_up

X = torch.randn(2, 8, 3, 4)


@pytest.mark.parametrize("channels", [2, 4, 8, 24])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_it_is_what_pytorch_gives_in_the_layout_of_its_input(channels: int, layout: torch.memory_format) -> None:
    wanted = torch.pixel_shuffle(X.repeat_interleave(channels * 4 // 8, 1), 2)
    x, other = (t.contiguous(memory_format=layout) for t in (X, torch.randn_like(wanted)))
    y = shuffle_up(x, (2, 2), channels, None)
    assert torch.equal(y, wanted)
    assert y.is_contiguous(memory_format=layout)
    assert torch.equal(shuffle_up(x, (2, 2), channels, other), wanted + other)


@pytest.mark.parametrize(("factors", "channels"), [((2, 2), 8), ((2, 2), 4), ((2, 2), 2), ((3, 1), 8), ((1, 2), 8)])
def test_channels_are_repeated_without_a_copy(factors: tuple[int, int], channels: int) -> None:
    """They are as many values as the result has."""

    def copied(*_args: object) -> Tensor:
        raise AssertionError("repeated channels were written")

    wanted = shuffle_up(X, factors, channels, None)
    with mock.patch.object(Tensor, "repeat_interleave", copied):
        assert torch.equal(shuffle_up(X, factors, channels, None), wanted)
    times = channels * factors[0] * factors[1] // 8
    pixels = X.repeat_interleave(times, 1).unflatten(1, (channels, *factors)).permute(0, 1, 4, 2, 5, 3)
    assert torch.equal(wanted, pixels.reshape(wanted.shape))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_part_is_what_is_cut_out_of_the_whole(layout: torch.memory_format) -> None:
    x, factors = X.contiguous(memory_format=layout), (2, 3)
    whole = shuffle_up(x, factors, 4, None)
    other = torch.randn(2, 4, 3, 12)
    assert torch.equal(shuffle_up(x, factors, 4, None, (0, 1, 4)), whole[:, :, 1:4])
    assert torch.equal(shuffle_up(x, factors, 4, other, (0, 1, 4)), whole[:, :, 1:4] + other)
    assert torch.equal(shuffle_up(x, factors, 4, None, (1, 5, 12)), whole[..., 5:])
