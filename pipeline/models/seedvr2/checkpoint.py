"""SeedVR2's VAE from its weights alone: they come without a configuration, so names and shapes say what it is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tvae.pipeline.errors import UsageError
from tvae.pipeline.files.tensor_header import TensorSpec
from tvae.pipeline.models.seedvr2.vae import SeedVR2Config, SeedVR2VAE

CLASS_NAME = "SeedVR2VAE"

_MARK = re.compile(r"decoder\.up_blocks\.\d+\.upsamplers\.0\.upscale_conv\.(weight|bias)")
"""Names that no other autoencoder has."""
_LEVEL = re.compile(r"encoder\.down_blocks\.(\d+)\.")
_LAYER = re.compile(r"encoder\.down_blocks\.0\.resnets\.(\d+)\.")
_SAMPLING = re.compile(r"encoder\.down_blocks\.\d+\.downsamplers\.0\.conv\.weight")


def config_of(tensors: Mapping[str, TensorSpec], where: Path) -> dict[str, Any] | None:
    """Configuration of the SeedVR2 VAE that has these tensors; None: they are another model's.

    `UsageError` names the file and the first tensor that is missing, unknown or of another shape.
    """
    if not any(map(_MARK.fullmatch, tensors)):
        return None
    config = _read_off(tensors, where)
    with torch.device("meta"):
        expected = {name: tuple(value.shape) for name, value in SeedVR2VAE(**config).state_dict().items()}
    missing, unknown = sorted(expected.keys() - tensors.keys()), sorted(tensors.keys() - expected.keys())
    others = [name for name in sorted(expected.keys() & tensors.keys()) if expected[name] != tensors[name].shape]
    for names, what in ((missing, "lack"), (others, "have another shape for"), (unknown, "hold the unknown")):
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise UsageError(f"the weights '{where}' are not those of SeedVR2's VAE: they {what} {names[0]}{more}")
    return config


def build(config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> SeedVR2VAE:
    """The module with these very tensors as its weights, which `config_of` has found to fit."""
    with torch.device("meta"):
        module = SeedVR2VAE(**config)
    module.load_state_dict(weights, assign=True)
    return module


def _read_off(tensors: Mapping[str, TensorSpec], where: Path) -> dict[str, Any]:
    """What shapes tell; the number of groups they do not, it is the published model's."""

    def shape(name: str) -> tuple[int, ...]:
        found = tensors.get(name)
        if found is None or len(found.shape) != 5 or 0 in found.shape:
            what = "lack" if found is None else "have another shape for"
            raise UsageError(f"the weights '{where}' are not those of SeedVR2's VAE: they {what} {name}")
        return found.shape

    levels = {m[1] for m in map(_LEVEL.match, tensors) if m}
    layers = {m[1] for m in map(_LAYER.match, tensors) if m}
    config = SeedVR2Config(
        in_channels=shape("encoder.conv_in.weight")[1],
        out_channels=shape("decoder.conv_out.weight")[0],
        latent_channels=shape("decoder.conv_in.weight")[1],
        block_out_channels=tuple(
            shape(f"encoder.down_blocks.{i}.resnets.0.conv1.weight")[0] for i in range(len(levels))
        ),
        layers_per_block=len(layers),
        temporal_scale_num=sum(shape(name)[2] == 3 for name in filter(_SAMPLING.fullmatch, tensors)),
    )
    if not levels or any(channels % config.norm_num_groups for channels in config.block_out_channels):
        widths = ", ".join(map(str, config.block_out_channels)) or "no"
        raise UsageError(
            f"the weights '{where}' are not those of SeedVR2's VAE: {widths} channels, "
            f"not multiples of {config.norm_num_groups}"
        )
    return asdict(config)
