"""Of public VAEs with a few tensors lost, renamed or misshapen: what is nearest, counted, in the file's names."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import published_names as names
import pytest
import torch
from published_names import Weights
from published_names_ltx import ltx_095
from slow_but import slow_but
from taesd_naive import random_file

from tvae.pipeline.errors import UsageError
from tvae.pipeline.files.tensor_header import Header, TensorSpec
from tvae.pipeline.models.families import FAMILIES
from tvae.pipeline.models.own_classes import class_named
from tvae.pipeline.models.single_file import recognise

SD: dict[str, Any] = {
    "down_block_types": ("DownEncoderBlock2D",) * 4,
    "up_block_types": ("UpDecoderBlock2D",) * 4,
    "block_out_channels": (128, 256, 512, 512),
    "layers_per_block": 2,
}
LAYOUTS: dict[str, tuple[str, dict[str, Any], Callable[[Weights], Weights], str]] = {
    "sdxl": ("AutoencoderKL", SD, names.latent_diffusion, "Latent Diffusion's"),
    "sdxl in diffusers": ("AutoencoderKL", SD, dict, "diffusers'"),
    "flux2": ("AutoencoderKLFlux2", {}, names.black_forest_labs, "Black Forest Labs'"),
    "wan": ("AutoencoderKLWan", {}, names.wan_21, "Wan's"),
    "hunyuan": ("AutoencoderKLHunyuanVideo", {}, names.hunyuan_in_comfyui, "Latent Diffusion's"),
    "hunyuan in diffusers": ("AutoencoderKLHunyuanVideo", {}, dict, "diffusers'"),
    "mochi": ("AutoencoderKLMochi", {}, names.mochi, "Genmo's"),
    "cosmos": ("AutoencoderKLCosmos", {}, names.cosmos, "NVIDIA's"),
    "taesd": ("AutoencoderTiny", {}, names.taesd_in_comfyui, "TAESD's"),
    "taehv": ("TAEHV", {}, dict, "TAEHV's"),
    "ltx 2": ("AutoencoderKLLTX2Video", {"decoder_causal": False}, ltx_095, "Lightricks'"),
}


def told(stored: Weights) -> str:
    """In one line."""
    specs = {f"vae.{name}": TensorSpec("BF16", tuple(value.shape)) for name, value in stored.items()}
    with pytest.raises(UsageError) as error:
        recognise(Header(specs, {}), Path("x.safetensors"))
    assert "\n" not in str(error.value)
    return str(error.value)


def lost(name: str, damage: str) -> tuple[Weights, list[str]]:
    """A file, and those of its tensors that are damaged."""
    class_name, config, publish, _ = LAYOUTS[name]
    found = class_named(class_name)
    assert found is not None
    with torch.device("meta"):
        stored = publish(dict(found(**config).state_dict()))
    marks = [layout.mark for layout in FAMILIES[class_name].layouts]
    unused = {"vae_scale", "vae_shift", "encoder.patcher3d.wavelets"}
    wide = [key for key, value in stored.items() if value.ndim > 1 and key not in unused]
    some = [wide[n * len(wide) // 4] for n in (0, 1, 3)]
    if damage == "marks":
        return stored, [key for key in wide if any(re.fullmatch(mark, key) for mark in marks)]
    return stored, some


@pytest.mark.parametrize(
    ("name", "damage"),
    slow_but(
        [("sdxl", "marks"), ("flux2", "some"), ("taehv", "bent"), ("wan", "renamed"), ("taesd", "marks")],
        [*product(LAYOUTS, ("marks", "some", "renamed", "bent"))],
    ),
)
def test_few_tensors_that_are_not_as_they_should_be(name: str, damage: str) -> None:
    stored, some = lost(name, damage)
    assert some
    if damage == "bent":
        line = told({k: torch.empty(2, 3, 5, device="meta") if k in some else v for k, v in stored.items()})
    elif damage == "renamed":
        line = told({f"{k}_old" if k in some else k: v for k, v in stored.items()})
    else:
        line = told({k: v for k, v in stored.items() if k not in some})
    class_name, _, _, whose = LAYOUTS[name]
    assert f"is no VAE that tvae knows; nearest is {class_name} in {whose} names: " in line
    first = line.split(" | ")[0]
    what = {"bent": "misshapen"}.get(damage, "missing")
    assert f"{len(some)} {what} (" in first
    assert all(f"vae.{key}" in first for key in some[:3])
    if damage == "renamed":
        assert f"{len(some)} left over (" in first
        assert all(f"vae.{key}_old" in first for key in some)


def test_many_are_counted_and_three_are_named() -> None:
    stored, _ = lost("sdxl", "some")
    gone = [key for key in stored if key.startswith("decoder.up.1.")]
    line = told({k: v for k, v in stored.items() if k not in gone})
    assert re.search(rf"{len(gone)} missing \(([^,]+, ){{3}}…\)$", line)


def test_a_side_with_a_tensor_less_is_told_as_one() -> None:
    for side in ("encoder", "decoder"):
        weights = random_file(side, "pooled", 32)
        del weights["4.conv.2.bias"]
        assert f"nearest is the {side} of TAESD in TAESD's names: 1 missing (vae.4.conv.2.bias)" in told(weights)


def test_what_is_like_no_vae_is_not_compared_with_one() -> None:
    for stored in (
        {f"double_blocks.{n}.img_attn.qkv.weight": torch.empty(3, 4) for n in range(19)},
        {f"lora_unet_down_blocks_{n}.lora_up.weight": torch.empty(3, 4) for n in range(9)},
        {f"encoder.block.{n}.layer.0.SelfAttention.q.weight": torch.empty(3, 4) for n in range(24)},
    ):
        line = told(stored)
        assert line.endswith(f"of no VAE that tvae knows: {len(stored)} tensors, such as 'vae.{min(stored)}'")


def test_layers_that_no_shapes_tell() -> None:
    """All convolutions that tell a level's channels are gone: they are what is named."""
    stored, _ = lost("sdxl", "some")
    gone = ("down.1.block.0.conv1", "down.1.block.0.conv2", "down.1.block.1.conv1")
    gone += ("up.2.block.0.conv1", "up.2.block.0.conv2", "up.2.block.1.conv1")
    line = told({k: v for k, v in stored.items() if not any(one in k for one in gone)})
    assert "AutoencoderKL in Latent Diffusion's names, whose layers are read off tensors that are missing (vae." in line


@pytest.mark.slow
def test_models_that_are_built_later_have_all_their_values() -> None:
    """Files of diffusers are imported where a class is first compared: what they make then is no shape alone."""
    code = """
import torch
from tvae.pipeline.files.tensor_header import TensorSpec
from tvae.pipeline.models.nearest import alike
alike({"x.weight": TensorSpec("F32", (3, 3))})
from diffusers.models.autoencoders import AutoencoderKLCosmos
narrow = {"encoder_block_out_channels": (16,) * 4, "decode_block_out_channels": (16,) * 4, "num_layers": 1}
model = AutoencoderKLCosmos(**narrow, attention_resolutions=(8,), resolution=64, patch_size=2)
with torch.no_grad():
    print(model.encode(torch.zeros(1, 3, 9, 64, 64)).latent_dist.sample().device)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == "cpu"
