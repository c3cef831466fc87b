"""A model that cards share, at work: its kernels built, and how many of its runs are recorded."""

from __future__ import annotations

import time

from tiny_vaes import TinyVAE
from torch import Tensor
from torch import distributed as dist

from tvae.kernels.prebuild import wait_for_all
from tvae.pipeline import TiledVAE

__all__ = ["SHAPE", "recorded_runs", "with_kernels_built"]

SHAPE = TinyVAE(
    "AutoencoderKL",
    {
        "down_block_types": ("DownEncoderBlock2D",) * 3,
        "up_block_types": ("UpDecoderBlock2D",) * 3,
        "block_out_channels": (128, 256, 256),
        "layers_per_block": 1,
        "norm_num_groups": 32,
    },
    (4, None),
    4,
)


def with_kernels_built(vae: TiledVAE, side: str, x: Tensor) -> None:
    """Nothing is recorded while kernels are built, and other levels have other last bits. x: of another size than what
    is to be recorded. Builds may begin some time after a call."""
    for _ in range(4):
        getattr(vae, side)(x.cuda().bfloat16())
        time.sleep(1)
        wait_for_all()
    dist.barrier()


def recorded_runs(vae: TiledVAE) -> int:
    return sum(len(session._runs._recorded) for session in vae._sessions.values())
