"""Convolutions of float32 on a CPU lay out no columns, and give what they are defined to give."""

from __future__ import annotations

import random

import pytest
import torch
from tiny_vaes import relative_l2
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from tvae.kernels.columns import column_bytes, has_columns
from tvae.kernels.library_convolutions import conv2d, conv3d

CPU = torch.device("cpu")
pytestmark = pytest.mark.long
FUNCTIONS = {2: conv2d, 3: conv3d}


def columns(x: Tensor, weight: Tensor, bias: Tensor | None, given: tuple[int, int, int, int]) -> tuple[Tensor, int]:
    """The result, and what the operations that lay out columns for it have allocated: results among it."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        y = FUNCTIONS[x.ndim - 2](x, weight, bias, *given)
    slow = [e for e in seen.events() if "slow_conv" in e.name]
    return y, sum(c.cpu_memory_usage for e in slow for c in e.cpu_children if "empty" in c.name or "resize" in c.name)


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="columns are all there is")
@pytest.mark.parametrize("seed", range(12))
def test_no_columns_beside_a_wide_strip(seed: int) -> None:
    """Few rows of many pixels: PyTorch itself would lay out all windows of them."""
    draw = random.Random(seed)
    inner, outer = draw.choice(((8, 8), (16, 4), (4, 16)))
    given = draw.choice((1, 1, 2)), draw.choice((0, 1)), draw.choice((1, 1, 2)), 1
    size, source = (1, inner, draw.randint(5, 7), draw.randint(6, 12), 3000), torch.Generator().manual_seed(seed)
    x, weight = torch.randn(size, generator=source), torch.randn(outer, inner, 3, 3, 3, generator=source)
    bias = torch.randn(outer, generator=source) if draw.random() < 0.5 else None
    if draw.random() < 0.5:
        x = x.contiguous(memory_format=torch.channels_last_3d)
    y, taken = columns(x, weight, bias, given)
    assert taken == 0
    want = torch.conv3d(x.double(), weight.double(), None if bias is None else bias.double(), *given)
    assert y.shape == want.shape
    assert relative_l2(y, want) <= 1e-6


@pytest.mark.parametrize("dims", [2, 3])
def test_what_float64_lays_out(dims: int) -> None:
    """It has columns whatever its size, as many bytes as are told."""
    assert has_columns(CPU, torch.float64, dims)
    x, weight = torch.randn(2, 6, *[4] * (dims - 2), 20, 30).double(), torch.randn(4, 6, *[3] * dims).double()
    y, taken = columns(x, weight, None, (1, 1, 1, 1))
    told = column_bytes(x.shape, weight.shape, y.shape[2:], 1, 8)
    assert told <= taken <= told + y.nbytes + x.nbytes


def test_single_taps_have_none() -> None:
    assert column_bytes((2, 6, 20, 30), (4, 6, 1, 1), (20, 30), 1, 4) == 0
    assert not has_columns(torch.device("meta"), torch.float64, 2)
