"""Convolutions of 16 bits on a CPU lay out columns, as many bytes as plans count: asked of PyTorch's profiler."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from small_functions import captured
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from tvae.kernels.columns import has_columns
from tvae.pipeline.engine.ir.program import Op
from tvae.pipeline.engine.lower import lower
from tvae.pipeline.engine.passes import simplify

CPU = torch.device("cpu")
MOST = 18 / 16 + 0.01
"""Times: at a border the convolution pads both sides of a strip, and two rows of the result are left out."""


def picture(m: nn.Module, x: Tensor) -> Tensor:
    return F.conv2d(x.half(), m.conv.weight.half(), None, 1, 1)


def clip(m: nn.Module, x: Tensor) -> Tensor:
    taps = m.conv.weight.half().unsqueeze(2).expand(-1, -1, 3, -1, -1)
    return F.conv3d(x.half().unsqueeze(2).expand(-1, -1, 5, -1, -1), taps, None, 1, [0, 1, 1])


def single(m: nn.Module, x: Tensor) -> Tensor:
    return m.conv(x)


def convolution(fn: Any) -> Op:
    graph = simplify(captured(fn)[0])
    sizes = graph.bind([(1, 3, 64, 48)])
    assert sizes is not None
    return next(op for op in lower(graph, sizes, CPU).ops if op.name in ("conv2d", "conv3d"))


@pytest.mark.long
@pytest.mark.skipif(not has_columns(CPU, torch.float16, 2), reason="this processor computes with 16 bits")
@pytest.mark.parametrize(("fn", "shape"), [(picture, (1, 3, 18, 48)), (clip, (1, 3, 5, 18, 48))])
def test_sixteen_rows_of_16_bits(fn: Any, shape: tuple[int, ...]) -> None:
    op, x = convolution(fn), torch.randn(shape).half()
    weight = torch.randn(op.shape[1], 3, *[3] * (len(shape) - 2)).half()
    function = F.conv2d if len(shape) == 4 else F.conv3d
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        function(x, weight, None, 1, [*[0] * (len(shape) - 3), 1])
    slow = [e for e in seen.events() if "slow_conv" in e.name]
    columns = max(c.cpu_memory_usage for e in slow for c in e.cpu_children)
    assert columns > 4 * x.nbytes
    assert columns + x.nbytes * 16 // 18 <= op.workspace(16) <= MOST * (columns + x.nbytes)


@pytest.mark.skipif(has_columns(CPU, torch.float32, 2), reason="without oneDNN it has them, too")
def test_float32_has_none() -> None:
    assert convolution(single).workspace(16) == 0
