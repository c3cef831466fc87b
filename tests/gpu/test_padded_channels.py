"""conv3d to twelve channels beside one to sixteen: about as fast, wherever workspaces are small, and the same sums."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tvae.kernels import Kernels
from tvae.kernels.trial import milliseconds
from tvae.pipeline.memory.conv_workspaces import SmallWorkspaces

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
LAST = torch.channels_last_3d
WAY = ([1, 1, 1], [0, 0, 0], [1, 1, 1], 1)


@pytest.mark.parametrize("rows", [90, 178, 354])
def test_twelve_channels_are_as_quick_as_sixteen(rows: int) -> None:
    random = torch.Generator("cuda").manual_seed(0)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, device="cuda").bfloat16().contiguous(memory_format=LAST)

    x, few, many = noise(1, 256, 6, rows, 642), noise(12, 256, 3, 3, 3), noise(16, 256, 3, 3, 3)
    kernels = Kernels({"default": "cuda"})
    with torch.no_grad(), SmallWorkspaces().all():
        times = [milliseconds(lambda w=w: kernels.conv3d(x, w, None, *WAY)) for w in (few, many)]  # type: ignore[misc]
        got = kernels.conv3d(x, few, None, *WAY)
    torch.cuda.empty_cache()
    want = F.conv3d(x[:, :, :, :20].double(), few.double(), None, *WAY)
    theirs = F.conv3d(x[:, :, :, :20], few, None, *WAY)
    mine, plain = (float((y[:, :, :, :18].double() - want).norm() / want.norm()) for y in (got, theirs))
    assert mine <= 1.02 * plain
    assert times[0] < 1.5 * times[1], times
