"""A video VAE as ComfyUI has it: weights by Wan's names, diffusers' untiled model inside, ComfyUI's calls around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from published_names import wan_21, wan_22
from stand_in_comfyui import ModelPatcher, Vae
from torch import Tensor, nn

_LAYERS = {"dim_mult": [1, 2], "num_res_blocks": 2, "temperal_downsample": [True]}
_PATCHED = {"is_residual": True, "in_channels": 12, "out_channels": 12, "patch_size": 2, "decoder_base_dim": 16}
_SAME = {**_LAYERS, "dim_mult": [1, 1]}
KINDS: dict[str, tuple[str, dict[str, Any], Callable[[Any], Any]]] = {
    "wan21": ("comfy.ldm.wan.vae", {"base_dim": 8, "z_dim": 4, **_LAYERS}, wan_21),
    "wan22": (
        "comfy.ldm.wan.vae2_2",
        {"base_dim": 8, "z_dim": 4, **_SAME, **_PATCHED},
        wan_22,
    ),
    "four": ("comfy.ldm.wan.vae", {"base_dim": 8, "z_dim": 4, **_LAYERS, "in_channels": 4, "out_channels": 4}, wan_21),
    "elsewhere": ("other.vae", {"base_dim": 8, "z_dim": 4, **_LAYERS}, wan_21),
}
"""Where the class lives, diffusers' configuration, and ComfyUI's names for the weights of that. Of *four* and
*elsewhere* no steps are known."""


def wan_module(kind: str) -> nn.Module:
    """Weights under ComfyUI's names; its calls compute with diffusers' model, whole and in its own chunks."""
    from diffusers import AutoencoderKLWan

    home, config, named = KINDS[kind]

    class WanVAE(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dim, self.z_dim, self.attn_scales = config["base_dim"], config["z_dim"], []
            self.dim_mult, self.num_res_blocks = config["dim_mult"], config["num_res_blocks"]
            self.temperal_downsample = config["temperal_downsample"]

        def decode(self, z: Tensor) -> Tensor:
            return self._computing().decode(z).sample

        def encode(self, x: Tensor) -> Tensor:
            return self._computing().encode(x).latent_dist.mean

        def _computing(self) -> Any:
            model = AutoencoderKLWan(**config)
            mine = self.state_dict()
            names = dict(zip(model.state_dict(), named(model.state_dict()), strict=True))
            model.load_state_dict({name: mine[theirs] for name, theirs in names.items()})
            return model.eval().requires_grad_(False)

    WanVAE.__module__ = home
    torch.manual_seed(7)
    found = WanVAE()
    for name, value in named(AutoencoderKLWan(**config).state_dict()).items():
        *places, last = name.split(".")
        part: Any = found
        for place in places:
            if not hasattr(part, place):
                part.add_module(place, nn.Module())
            part = getattr(part, place)
        more = 0.3 * torch.randn_like(value) if last == "gamma" else 0
        part.register_parameter(last, nn.Parameter(value + more, requires_grad=False))
    return found.eval()


class ClipVae(Vae):
    """Clips in, clips out. chunked: as a ComfyUI that knows ``comfy_has_chunked_io``."""

    latent_dim = 3

    def __init__(self, kind: str = "wan21", *, chunked: bool = True) -> None:
        super().__init__()
        self.first_stage_model = wan_module(kind)
        self.patcher = ModelPatcher(self.first_stage_model, self.device, self.device)
        self.output_device, self.vae_dtype, self._chunked = torch.device("cpu"), torch.float32, chunked
        self.process_output = lambda image: ((image + 1) / 2).clamp(0, 1)

    def decode(self, samples: Tensor) -> Tensor:
        self.asked.append(self.memory_used_decode(samples.shape, torch.float32))
        stage: Any = self.first_stage_model
        if self._chunked and getattr(stage, "comfy_has_chunked_io", False):
            found = torch.empty(stage.decode_output_shape(samples.shape))
            stage.decode(samples, output_buffer=found)
        else:
            found = stage.decode(samples)
        return self.process_output(found).movedim(1, -1)

    def encode(self, pixels: Tensor) -> Tensor:
        pixels = pixels.movedim(-1, 1).movedim(1, 0).unsqueeze(0) * 2 - 1
        self.asked.append(self.memory_used_encode(pixels.shape, torch.float32))
        stage: Any = self.first_stage_model
        if self._chunked and getattr(stage, "comfy_has_chunked_io", False):
            found: Tensor = stage.encode(pixels, device=self.device)
            return found
        return stage.encode(pixels)
