"""The numbers of caches for VAEs with a space of their own: FLUX.2's squares, HunyuanVideo's scale."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cache_vaes import reference, saved
from PIL import Image
from safetensors.torch import load_file
from tiny_vaes import relative_l2
from torch import Tensor

from tvae.pipeline.caches import Buckets, CacheRequest
from tvae.pipeline.jobs import Job, run_job


def flux2(model: Any, mean: Tensor) -> Tensor:
    """As diffusers' pipeline makes tokens of it, one at a time: squares of 2x2, channel by channel."""
    _, channels, height, width = mean.shape
    found = torch.empty(channels * 4, height // 2, width // 2, dtype=mean.dtype)
    for place in range(4):
        found[place::4] = mean[0, :, place // 2 :: 2, place % 2 :: 2]
    shift = model.bn.running_mean.double().view(-1, 1, 1)
    scale = (model.bn.running_var.double().view(-1, 1, 1) + model.config.batch_norm_eps).sqrt()
    return (found - shift) / scale


CASES = {
    "f2d": ("flux2", flux2, 1e-5),
    "hv": ("hunyuan", lambda _model, mean: mean[0], 6e-4),  # stored as float16
    "k5": ("hunyuan", lambda model, mean: mean[0] * model.config.scaling_factor, 6e-4),
}


@pytest.mark.parametrize("name", CASES)
def test_musubi(tmp_path: Path, name: str) -> None:
    vae, wanted, most = CASES[name]
    model = saved(vae, tmp_path / "vae")
    if vae == "flux2":
        with torch.no_grad():
            model.bn.running_mean.copy_(torch.linspace(-1, 1, 128))
            model.bn.running_var.copy_(torch.linspace(0.5, 2, 128))
        model.save_pretrained(model.folder)
    rgb = np.random.default_rng(0).integers(0, 256, (48, 64, 3), dtype=np.uint8)
    Image.fromarray(rgb).save(tmp_path / "a.png")
    request = CacheRequest("musubi", name, Buckets(False), posterior="mean")
    fields: dict[str, Any] = {"output": str(tmp_path), "vae": str(model.folder), "dtype": "float32", "size": (64, 48)}
    done = run_job(Job("cache", (str(tmp_path / "a.png"),), cache=request, **fields), lambda _event: None)
    assert done.done == 1
    (found,) = (
        value
        for key, value in load_file(tmp_path / f"a_0064x0048_{name}.safetensors").items()
        if not key.startswith("latents_image")
    )
    pixels = torch.from_numpy(rgb).permute(2, 0, 1).unsqueeze(0)
    mean = reference(model, pixels if vae == "flux2" else pixels.unsqueeze(2))[0]
    assert relative_l2(found, wanted(model, mean)) < most
