"""Calls that two cards share by NCCL are recorded as CUDA graphs, messages included."""

from __future__ import annotations

import pytest
import torch
from gloo_ranks import in_ranks
from shared_cards import SHAPE, recorded_runs, with_kernels_built
from tiny_vaes import TINY, relative_l2, result, waves
from torch import Tensor
from torch import distributed as dist

from tvae.pipeline import TiledVAE
from tvae.pipeline.session.runner import RECORDED_AT

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]

CALLS = RECORDED_AT + 1


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
