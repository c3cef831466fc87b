"""conv3d from three and twelve channels: quicker than cuDNN's, and no further from the exact sums."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tvae.kernels import Kernels, folded_frames
from tvae.kernels.trial import milliseconds

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
ONCE = ([1, 1, 1], [0, 1, 1], [1, 1, 1], 1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("few", "outer", "height", "width"), [(3, 96, 720, 1280), (3, 128, 241, 417), (12, 160, 352, 640)]
)
def test_few_channels_are_quicker_and_as_exact(
    few: int, outer: int, height: int, width: int, dtype: torch.dtype
) -> None:
    random = torch.Generator("cuda").manual_seed(0)

    def noise(*shape: int) -> Tensor:
        made = torch.randn(*shape, generator=random, device="cuda").to(dtype)
        return made.contiguous(memory_format=torch.channels_last_3d)

    x, weight = noise(1, few, 6, height, width), noise(outer, few, 3, 3, 3) / few
    bias, kernels = torch.randn(outer, generator=random, device="cuda").to(dtype), Kernels({"default": "cuda"})
    assert folded_frames.suits(x, weight, *ONCE)
    with torch.no_grad():
        ours, theirs = (
            milliseconds(lambda run=run: run(x, weight, bias, *ONCE))  # type: ignore[misc]
            for run in (kernels.conv3d, F.conv3d)
        )
        got, plain = (run(x, weight, bias, *ONCE) for run in (kernels.conv3d, F.conv3d))
    want = F.conv3d(x[:, :, :, :40].double(), weight.double(), bias.double(), *ONCE)[:, :, :, :30]
    mine, own = (float((y[:, :, :, :30].double() - want).norm() / want.norm()) for y in (got, plain))
    assert mine <= own
    assert ours < 0.8 * theirs, (ours, theirs)
