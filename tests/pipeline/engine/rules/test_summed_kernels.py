"""Kernels of 3x3 after upsampling, summed once to the taps of one convolution: their values, layout and memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tvae.pipeline.engine.ir.fused_ops import enlarging_taps, subpixel_weight


@pytest.mark.parametrize(("h", "w"), [(1, 1), (1, 5), (4, 3), (6, 7)])
def test_one_weight_upsamples_and_convolves(h: int, w: int) -> None:
    random = torch.Generator().manual_seed(3)
    x, weight, bias = (torch.randn(*s, generator=random).double() for s in ((2, 3, h, w), (5, 3, 3, 3), (5,)))
    want = F.conv2d(F.interpolate(x, scale_factor=2.0, mode="nearest"), weight, bias, padding=1)
    found = F.conv_transpose2d(x, subpixel_weight(None, weight), bias, 2, 1)
    torch.testing.assert_close(found, want, rtol=0, atol=1e-13)


def test_sums_of_taps_are_rounded_once() -> None:
    weight = torch.randn(4, 6, 3, 3, generator=torch.Generator().manual_seed(4)).bfloat16()
    taps = subpixel_weight(None, weight)
    assert taps.dtype == torch.bfloat16
    assert torch.equal(taps, subpixel_weight(None, weight.double()).bfloat16())


def test_summed_taps_lie_as_the_weight_does() -> None:
    plain = torch.randn(4, 6, 3, 3, generator=torch.Generator().manual_seed(2))
    last = plain.contiguous(memory_format=torch.channels_last)
    of_plain, of_last = subpixel_weight(None, plain), subpixel_weight(None, last)
    assert torch.equal(of_plain, of_last)
    assert of_plain.is_contiguous()
    assert of_last.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("made", [subpixel_weight, enlarging_taps])
@pytest.mark.parametrize("shape", [(700, 300, 3, 3), (3, 1200, 3, 3), (1, 1, 3, 3)], ids=str)
def test_kernels_are_summed_in_little_memory(made: Any, shape: tuple[int, ...]) -> None:
    """No plan counts what the steps take: of 1024 channels it was 196 MiB beside the result."""
    weight = torch.randn(shape).bfloat16()
    sizes: list[int] = []

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            sizes.append(result.untyped_storage().nbytes() if isinstance(result, Tensor) else 0)
            return result

    with Sizes():
        found = made(None, weight)
    result = weight.shape[0] * weight.shape[1] * 16 * 2
    assert all(n <= 3 << 20 or n == result for n in sizes)
    ones = torch.ones(weight.shape[1], 1, 2, 2, dtype=torch.float64)
    expected = F.conv_transpose2d(weight.double().flip(2, 3), ones, groups=weight.shape[1])
    expected = expected.transpose(0, 1) if made is subpixel_weight else expected
    torch.testing.assert_close(made(None, weight.double()), expected, rtol=0, atol=1e-13)
    assert ((found - expected).norm() / expected.norm()).item() < 2**-8
