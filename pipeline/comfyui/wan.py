"""ComfyUI's module of Wan's VAEs (2.1, 2.2, Qwen-Image) as diffusers' class over the same weights, which has steps.

Both compute the same numbers from weights of the same names, but for the clamp of pixels to [-1, 1], which ComfyUI does
behind its model. Read at Comfy-Org/ComfyUI a125cd84 and alexisrolland/ComfyUI 34d7a5dc: ``comfy/ldm/wan``.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import nn

from tvae.pipeline.models.families import FAMILIES
from tvae.pipeline.models.layout import module_names

__all__ = ["as_diffusers"]

_CLASS, _NAME = "AutoencoderKLWan", "WanVAE"
_HOMES = {"comfy.ldm.wan.vae": None, "comfy.ldm.wan.vae2_2": 2}
"""Modules of ComfyUI that have a class of this name, and how many pixels it folds along each side."""
_CHANNELS = 3


def as_diffusers(model: nn.Module) -> nn.Module | None:
    """An AutoencoderKLWan whose weights are those of ComfyUI's module, also after some are moved or replaced.

    None for a module of another class, for one with other layers or channels than a published VAE of pictures has, and
    for one that somebody has changed: with hooks, or with a ``forward`` of its own.
    """
    cls = type(model)
    if cls.__name__ != _NAME or cls.__module__ not in _HOMES or any(map(_changed, model.modules())):
        return None
    from diffusers.models.autoencoders import AutoencoderKLWan

    try:
        with torch.device("meta"):
            found: nn.Module = AutoencoderKLWan(**_config(model, _HOMES[cls.__module__]))
    except (AttributeError, TypeError, ValueError, RuntimeError):
        return None  # of a ComfyUI that builds its module in another way
    return found.eval() if _shared(found, model) else None


def _changed(part: nn.Module) -> bool:
    return bool(part._forward_hooks or part._forward_pre_hooks) or "forward" in vars(part)


def _config(model: Any, patch: int | None) -> dict[str, Any]:
    """Of a module for pictures of three channels; for others it has other shapes."""
    config = {
        "base_dim": model.dim,
        "z_dim": model.z_dim,
        "dim_mult": [*model.dim_mult],
        "num_res_blocks": model.num_res_blocks,
        "attn_scales": [*model.attn_scales],
        "temperal_downsample": [*model.temperal_downsample],
    }
    if patch is not None:
        width = _CHANNELS * patch**2
        config |= {"is_residual": True, "in_channels": width, "out_channels": width, "patch_size": patch}
        config |= {"decoder_base_dim": model.get_parameter("decoder.head.0.gamma").shape[0] // model.dim_mult[0]}
    return config


def _shared(found: nn.Module, model: nn.Module) -> bool:
    """Give one module the weights of the other; False where they do not match one by one."""
    stored = model.state_dict()
    layouts = FAMILIES[_CLASS].layouts
    layout = next((one for one in layouts if any(re.fullmatch(one.mark, name) for name in stored)), None)
    if layout is None:
        return False
    names = {new[0]: old for old, new in module_names(layout, stored).items() if len(new) == 1}
    wanted = {name: value.shape for name, value in found.state_dict().items()}
    if len(names) != len(stored) or wanted != {new: stored[old].shape for new, old in names.items()}:
        return False
    places = {new.rpartition(".")[0]: old.rpartition(".")[0] for new, old in names.items()}
    for place, part in found.named_modules():
        if part._parameters:
            part.__dict__["_parameters"] = model.get_submodule(places[place])._parameters
    return True
