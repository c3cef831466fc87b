"""Calls that two cards share by NCCL are recorded as CUDA graphs, messages included."""

from __future__ import annotations

import time

import pytest
import torch
from gloo_ranks import in_ranks
from tiny_vaes import TINY, TinyVAE, relative_l2, result, waves
from torch import Tensor
from torch import distributed as dist

from tvae.kernels.prebuild import wait_for_all
from tvae.pipeline import TiledVAE
from tvae.pipeline.session.runner import RECORDED_AT

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]

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
CALLS = RECORDED_AT + 1


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


def inputs(side: str) -> list[Tensor]:
    x = SHAPE.input(side, 46, 30)
    return [x * (1 + n / 4) for n in range(CALLS)] + [x]


def shared(rank: int, side: str, gather: bool) -> list[Tensor]:
    """Results, and how many runs were recorded for them."""
    model = SHAPE.build().cuda().bfloat16()
    vae = TiledVAE(model, group=dist.group.WORLD, gather=gather)
    with_kernels_built(vae, side, SHAPE.input(side, 38, 22))
    before = recorded_runs(vae)
    found = [result(getattr(vae, side)(x.cuda().bfloat16())).cpu() for x in inputs(side)]
    return [*found, torch.tensor(recorded_runs(vae) - before)]


@pytest.mark.parametrize("gather", [True, False])
@pytest.mark.parametrize("side", ["decode", "encode"])
def test_two_cards(side: str, gather: bool) -> None:
    model = SHAPE.build()
    with torch.no_grad():
        exact = [result(getattr(model.double(), side)(x.double())) for x in inputs(side)]
    ranks = in_ranks(2, shared, side, gather, backend="nccl")
    assert [int(found[-1]) for found in ranks] == [1, 1]
    for n, want in enumerate(exact):
        parts = [found[n] for found in ranks]
        got = parts[0] if gather else torch.cat(parts, -2)
        assert relative_l2(got, want) < 0.05
        assert not gather or torch.equal(*parts)
    for *found, _ in ranks:
        assert torch.equal(found[0], found[-1]), "started and replayed"
        assert not torch.equal(found[0], found[1])


def clips(side: str) -> list[Tensor]:
    wan = TINY["AutoencoderKLWan"]
    like = wan.input(side, 32, 24)
    frames = 9 if side == "decode" else 29
    return [waves((*like.shape[:2], frames, *like.shape[3:]), seed) for seed in (1, 2)]


def shared_clips(_rank: int, side: str) -> list[Tensor]:
    """Results, and how many runs were recorded for them."""
    model = TINY["AutoencoderKLWan"].build().cuda().bfloat16()
    vae = TiledVAE(model, group=dist.group.WORLD)
    with_kernels_built(vae, side, clips(side)[0][..., :16])
    before = recorded_runs(vae)
    found = [result(getattr(vae, side)(x.cuda().bfloat16())).cpu() for x in (*clips(side), clips(side)[0])]
    return [*found, torch.tensor(recorded_runs(vae) - before)]


@pytest.mark.parametrize("side", ["decode", "encode"])
def test_steps_on_two_cards(side: str) -> None:
    model = TINY["AutoencoderKLWan"].build().double()
    with torch.no_grad():
        exact = [result(getattr(model, side)(x.double())) for x in clips(side)]
    for *found, recorded in in_ranks(2, shared_clips, side, backend="nccl"):
        assert int(recorded) >= 1
        assert all(relative_l2(got, want) < 0.05 for got, want in zip(found, exact, strict=False))
        assert relative_l2(found[0], found[-1]) < 0.02, "started and replayed"
