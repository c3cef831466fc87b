"""The posterior against diffusers' own."""

from __future__ import annotations

import pytest
import torch

from tvae.pipeline.outputs import Posterior


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [(2, 8, 5, 7), (1, 8, 3, 5, 7)], ids=["image", "video"])
def test_a_seed_draws_what_diffusers_draws(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """But for one rounding: mean + std·noise is one operation here and two there."""
    from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution

    moments = (torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 3).to(dtype)
    ours, theirs = Posterior.from_moments(moments), DiagonalGaussianDistribution(moments)
    assert torch.equal(ours.mean, theirs.mean)
    assert torch.equal(ours.std, theirs.std)
    assert torch.equal(ours.mode(), theirs.mode())
    seeds = [torch.Generator().manual_seed(7) for _ in range(2)]
    got, want = ours.sample(seeds[0]), theirs.sample(seeds[1])
    assert got.dtype == dtype
    noise = (want - theirs.mean).double()
    bound = torch.finfo(dtype).eps * (noise.abs() + want.double().abs())
    assert ((got.double() - want.double()).abs() <= bound).all()
    assert torch.equal(torch.randn(3, generator=seeds[0]), torch.randn(3, generator=seeds[1]))  # as much was drawn


def test_log_variances_are_clamped_as_diffusers_does() -> None:
    from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution

    moments = torch.tensor([0.0, 0.0, -1e4, 1e4]).view(1, 4, 1, 1)
    assert torch.equal(Posterior.from_moments(moments).std, DiagonalGaussianDistribution(moments).std)


def test_a_point_is_its_own_sample() -> None:
    point = Posterior(torch.randn(1, 4, 3, 3), None)
    assert torch.equal(point.sample(torch.Generator()), point.mean)
    assert torch.equal(point.std, torch.zeros_like(point.mean))
