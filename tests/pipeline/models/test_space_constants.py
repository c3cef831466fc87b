"""Constants of model space that a configuration has wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tvae.pipeline.errors import InputError, UsageError
from tvae.pipeline.models.latent_space import LatentSpace
from tvae.pipeline.models.space import latent_space


@pytest.mark.parametrize("config", [{"scaling_factor": "large"}, {"latents_mean": [0.0], "latents_std": [0.0]}])
def test_constants_of_no_use(config: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="AutoencoderKL: its configuration has unusable latent statistics"):
        latent_space("AutoencoderKL", config, {})


@pytest.mark.parametrize(
    ("class_name", "config", "told"),
    [
        ("AutoencoderKLWan", {"z_dim": 4, "latents_mean": [0.0] * 16, "latents_std": [1.0] * 16}, "16 values for 4"),
        ("AutoencoderKLWan", {"z_dim": 16, "latents_mean": [0.0] * 16, "latents_std": [1.0] * 4}, "4 values for 16"),
        ("AutoencoderKL", {"latent_channels": 4, "latents_mean": [], "latents_std": []}, "0 values for 4"),
        ("AutoencoderKLMochi", {"latent_channels": 12, "latents_mean": [0.0] * 3, "latents_std": [1.0]}, "3 values"),
    ],
)
def test_constants_for_other_channels(class_name: str, config: dict[str, Any], told: str) -> None:
    """Raw space needs none."""
    space = latent_space(class_name, config, {})
    assert space.unknown is not None
    assert told in space.unknown
    with pytest.raises(InputError, match="nothing is known of this VAE's model space: its latent statistics have"):
        space.to_model(torch.zeros(1, 4, 1, 2, 2))


def test_one_constant_is_for_every_channel() -> None:
    config = {"latent_channels": 4, "latents_mean": [0.5], "latents_std": [2.0], "scaling_factor": 1.0}
    assert latent_space("AutoencoderKL", config, {}) == LatentSpace((0.5,), (0.5,))
