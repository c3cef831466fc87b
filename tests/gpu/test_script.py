"""TorchScript's fuser at work: one pass from the first large picture on, whatever its size."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tvae.kernels import script

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    pytest.mark.skipif(script.missing() is not None, reason=str(script.missing())),
]


def picture(rows: int, channels: int, last: bool) -> Tensor:
    x = torch.randn(1, channels, rows, 512, device="cuda").bfloat16()
    return x.contiguous(memory_format=torch.channels_last) if last else x


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("operation", ["norm_act", "add_stats", "rms_norm_act"])
def test_no_size_needs_more_than_its_result(operation: str, last: bool) -> None:
    if operation == "rms_norm_act" and not last:
        pytest.skip("channels innermost only")
    calls: dict[str, Callable[[Tensor, Tensor, Tensor], object]] = {
        "norm_act": lambda x, affine, other: script.norm_act(x, affine, "silu"),
        "add_stats": lambda x, affine, other: script.add_stats(x, other, affine[0, 0], None, False),
        "rms_norm_act": lambda x, affine, other: script.rms_norm_act(x, affine[0, 0], None, 1e-6, "rms", "silu"),
    }
    for rows, channels in ((512, 128), (256, 128), (500, 256), (37, 512)):
        x, other = picture(rows, channels, last), picture(rows, channels, last)
        affine = torch.ones(2, 1, channels, device="cuda")
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        result = calls[operation](x, affine, other)
        used = torch.cuda.max_memory_allocated() - before
        sizes = 4 * x[:, 0].numel() if operation == "rms_norm_act" else 0  # of each pixel, in float32
        assert used <= x.nbytes + 3 * sizes + 2**21, (rows, channels, used / x.nbytes)
        del result
    assert not script._failed
