"""Pixels and draws on a GPU are bit for bit (draws: but for one rounding) those of the CPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tvae.kernels import Kernels
from tvae.pipeline.media import frames_to_tensor, tensor_to_frames
from tvae.pipeline.session.outputs import Posterior

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

TYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.parametrize("kind", TYPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16], ids=str)
def test_every_level_has_the_same_bits(dtype: torch.dtype, kind: torch.dtype) -> None:
    kernels, count = Kernels(), 256 if dtype == torch.uint8 else 65536
    levels = (
        torch.arange(count, dtype=torch.int32).to(dtype).view(1, 16, -1, 1).expand(1, 16, count // 16, 3).contiguous()
    )
    here, there = kernels.frames_to_tensor(levels, kind), kernels.frames_to_tensor(levels.cuda(), kind)
    assert torch.equal(there.cpu(), here)
    assert there.is_contiguous(memory_format=torch.channels_last)
    values = (torch.randn(1, 3, 300, 400, generator=torch.Generator().manual_seed(0)) * 0.7).to(kind)
    back = kernels.tensor_to_frames(values.cuda(), dtype).cpu()
    assert np.array_equal(back.numpy(), kernels.tensor_to_frames(values, dtype).numpy())


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_frames_go_there_and_back(kind: torch.dtype) -> None:
    rng = np.random.default_rng(0)
    frames = [rng.integers(0, 256, (48, 80, 3), dtype=np.uint8) for _ in range(3)]
    pixels = frames_to_tensor(frames, "cuda", kind)
    assert torch.equal(pixels.cpu(), frames_to_tensor(frames).to(kind))
    for got, want in zip(tensor_to_frames(pixels), tensor_to_frames(pixels.cpu()), strict=True):
        assert np.array_equal(got, want)


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_a_seed_draws_alike_on_every_device(kind: torch.dtype) -> None:
    moments = torch.randn(2, 8, 33, 17, generator=torch.Generator().manual_seed(0)).to(kind)
    here, there = (
        Posterior.from_moments(m).sample(torch.Generator().manual_seed(7)) for m in (moments, moments.cuda())
    )
    torch.testing.assert_close(there.cpu(), here, rtol=4 * torch.finfo(kind).eps, atol=4 * torch.finfo(kind).eps)
