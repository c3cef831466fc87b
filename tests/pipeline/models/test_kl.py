"""AutoencoderKL in our own layers: diffusers' names and numbers, and only the configurations that we know in full."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_vaes import TINY, TinyVAE, relative_l2

from tvae.pipeline.errors import UsageError
from tvae.pipeline.models import kl
from tvae.pipeline.models.families import FAMILIES
from tvae.pipeline.models.kl.vae import Gaussian
from tvae.pipeline.models.load import has_own, load_module, load_own, locate_vae

TINY_ONE = TINY["AutoencoderKL"]
BUILTIN = locate_vae("builtin").config
OTHERS: list[dict[str, Any]] = [
    {},
    {"use_quant_conv": False, "layers_per_block": 2, "latent_channels": 16},
    {"use_post_quant_conv": False, "mid_block_add_attention": False, "in_channels": 4, "out_channels": 2},
    {"block_out_channels": (24, 16, 32), "act_fn": "swish"},
]
WEIGHTS = "diffusion_pytorch_model.safetensors"


def with_changes(changes: dict[str, Any]) -> TinyVAE:
    return TinyVAE("AutoencoderKL", TINY_ONE.config | changes, TINY_ONE.latent, TINY_ONE.scale)


def ours(config: Any) -> kl.KLVAE:
    found = kl.config_of(config)
    assert found is not None
    return kl.KLVAE(found)


@pytest.mark.parametrize("changes", OTHERS)
@pytest.mark.parametrize("size", [(16, 24), (21, 18)])
def test_the_numbers_are_those_of_diffusers(changes: dict[str, Any], size: tuple[int, int]) -> None:
    theirs: Any = with_changes(changes).build().double()
    model = ours(theirs.config).double()
    model.load_state_dict(theirs.state_dict())
    config, generator = theirs.config, torch.Generator().manual_seed(1)
    x = torch.randn(2, config["in_channels"], *size, dtype=torch.float64, generator=generator)
    z = torch.randn(2, config["latent_channels"], *size, dtype=torch.float64, generator=generator)
    with torch.no_grad():
        posterior, expected = model.encode(x), theirs.encode(x).latent_dist
        assert relative_l2(posterior.mean, expected.mean) < 1e-13
        assert relative_l2(posterior.logvar, expected.logvar) < 1e-13
        assert relative_l2(model.decode(z), theirs.decode(z).sample) < 1e-13


def test_the_builtin_has_the_numbers_of_diffusers() -> None:
    source = locate_vae("builtin")
    theirs: Any = load_module(source, torch.float32).double()
    model = load_own(source, torch.float32).double()
    assert isinstance(model, kl.KLVAE)
    x, z = torch.rand(1, 3, 40, 24).double() * 2 - 1, torch.randn(1, 16, 5, 3).double()
    with torch.no_grad():
        assert relative_l2(model.encode(x).mean, theirs.encode(x).latent_dist.mean) < 1e-13
        assert relative_l2(model.decode(z), theirs.decode(z).sample) < 1e-13


def test_log_variances_are_clamped() -> None:
    moments = torch.tensor([0.5, -40.0, 1.0, 30.0]).reshape(1, 4, 1, 1)[:, [0, 2, 1, 3]]
    assert Gaussian(moments).logvar.flatten().tolist() == [-30.0, 20.0]


def test_public_shapes_are_known() -> None:
    """And their weights have diffusers' names and shapes."""
    from diffusers import AutoencoderKL

    for config in (BUILTIN, *(c.config for c in FAMILIES["AutoencoderKL"].checkpoints.values())):
        with torch.device("meta"):
            theirs = AutoencoderKL.from_config(config).state_dict()
            mine = ours(json.loads(json.dumps(config))).state_dict()
        assert {n: t.shape for n, t in mine.items()} == {n: t.shape for n, t in theirs.items()}


@pytest.mark.parametrize(
    "changes",
    [
        {"act_fn": "gelu"},
        {"down_block_types": ("DownEncoderBlock2D", "DownEncoderBlock2D", "AttnDownEncoderBlock2D")},
        {"up_block_types": ("UpDecoderBlock2D",)},
        {"norm_num_groups": None},
        {"norm_num_groups": 5},
        {"latent_channels": True},
        {"layers_per_block": 0},
        {"block_out_channels": []},
        {"block_out_channels": (16, 32.0, 32)},
        {"block_out_channels": 16},
        {"down_block_types": 3},
        {"act_fn": ["silu"]},
        {"spatial_norm": True},
    ],
)
def test_what_is_not_known_goes_through_diffusers(changes: dict[str, Any]) -> None:
    assert kl.config_of(TINY_ONE.config | changes) is None


def test_defaults_are_those_of_diffusers() -> None:
    from diffusers import AutoencoderKL

    theirs = dict(AutoencoderKL().config)
    assert kl.config_of({}) == kl.config_of(theirs)


def test_weights_that_do_not_fit_are_told_as_ever(tmp_path: Path) -> None:
    model: Any = TINY_ONE.build()
    model.save_pretrained(tmp_path)
    assert has_own(locate_vae(str(tmp_path)))
    weights = load_file(tmp_path / WEIGHTS)
    del weights["quant_conv.bias"]
    save_file(weights, tmp_path / WEIGHTS)
    with pytest.raises(UsageError, match=r"missing quant_conv\.bias"):
        load_own(locate_vae(str(tmp_path)), torch.float32)
