"""Tensors seen as pixels: every element at the place the strides say."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_inputs import channels_last
from torch import Tensor

from tvae.kernels.layout import Pixels, as_pixels


def by_strides(x: Tensor, seen: Pixels) -> Tensor:
    """[samples, outer, pixels, channels] as a kernel would read it."""
    size = (seen.samples, seen.outer, seen.pixels, seen.channels)
    return x.as_strided(size, (seen.sample_stride, seen.outer_stride, seen.pixel_stride, 1), x.storage_offset())


@given(st.data())
@settings(max_examples=2 * settings.default.max_examples, deadline=None)
def test_pixels_in_order_wherever_they_lie(data: Any) -> None:
    """Cut from a channels-last tensor along any dimensions but the channels, maybe with its channels cut too."""
    spatial = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    n, c = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    x = channels_last(torch.arange(n * c * torch.Size(spatial).numel()).view(n, c, *spatial))
    cut = data.draw(st.lists(st.integers(0, x.ndim - 1), max_size=2, unique=True))
    for dim in cut:
        start = data.draw(st.integers(0, x.shape[dim] - 1))
        x = x.narrow(dim, start, data.draw(st.integers(1, x.shape[dim] - start)))
    seen = as_pixels(x)
    if len(spatial) < 3 or not set(cut) & {3, 4}:
        assert seen is not None  # at most two runs of pixels
    if seen is not None:
        assert torch.equal(by_strides(x, seen).flatten(1, 2), x.flatten(2).transpose(1, 2))


def test_a_strip_of_one_picture_is_one_run() -> None:
    x = channels_last(torch.zeros(1, 8, 16, 5))[:, :, 3:9]
    assert as_pixels(x) == Pixels(1, 1, 30, 8, x.stride(0), 0, 8)


def test_a_strip_of_a_clip_has_a_run_for_each_frame() -> None:
    x = channels_last(torch.zeros(2, 8, 3, 16, 5))[:, :, :, 3:9]
    assert as_pixels(x) == Pixels(2, 3, 30, 8, 3 * 16 * 5 * 8, 16 * 5 * 8, 8)


def test_pixels_of_a_part_of_the_channels_are_further_apart() -> None:
    seen = as_pixels(channels_last(torch.zeros(1, 8, 4, 5))[:, 2:5])
    assert seen is not None
    assert (seen.channels, seen.pixel_stride) == (3, 8)


@pytest.mark.parametrize(
    "x",
    [
        torch.zeros(1, 8, 4, 5),
        torch.zeros(2, 8),
        channels_last(torch.zeros(1, 8, 0, 5)),
        channels_last(torch.zeros(1, 8, 1, 5)).expand(1, 8, 4, 5),
        channels_last(torch.zeros(1, 8, 4, 1)).expand(1, 8, 4, 5),
        channels_last(torch.zeros(1, 8, 4, 5)).expand(2, 8, 4, 5),
        channels_last(torch.zeros(1, 8, 3, 4, 5))[:, :, :, :3, :4],
    ],
    ids=["channels outside", "no pixels", "empty", "rows repeated", "columns repeated", "samples repeated", "uneven"],
)
def test_what_no_kernel_can_walk_through(x: Tensor) -> None:
    assert as_pixels(x) is None
