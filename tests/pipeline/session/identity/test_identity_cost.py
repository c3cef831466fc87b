"""What an identity costs, of SDXL's autoencoder without weights."""

from __future__ import annotations

import timeit

import pytest
import torch
from torch import nn

from tvae.pipeline.session.identity.identity import identity_of


def sdxl() -> nn.Module:
    from diffusers import AutoencoderKL

    blocks = {"down_block_types": ("DownEncoderBlock2D",) * 4, "up_block_types": ("UpDecoderBlock2D",) * 4}
    with torch.device("meta"):
        return AutoencoderKL(**blocks, block_out_channels=(128, 256, 512, 512), layers_per_block=2, latent_channels=4)


def least(function: object, number: int, repeat: int) -> float:
    return min(timeit.repeat(function, number=number, repeat=repeat)) / number  # type: ignore[arg-type]


@pytest.mark.slow
def test_the_check_before_a_call_and_the_digest_are_cheap() -> None:
    model = sdxl()
    identity = identity_of(model)
    assert identity.unchanged()
    assert least(identity.unchanged, 5, 2000) < 0.3e-3  # 0.15 on a quiet core
    assert least(lambda: identity_of(model), 1, 10) < 0.1  # 0.02 on a quiet core
