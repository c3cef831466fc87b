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
from slow_but import slow_but
from tiny_vaes import relative_l2
from torch import Tensor

from tvae.pipeline.caches import Buckets, CacheRequest
from tvae.pipeline.errors import UsageError
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


def ideogram(_model: Any, mean: Tensor) -> Tensor:
    """Raw, in squares of 2x2: all channels of the first place, then of the next along its row."""
    _, channels, height, width = mean.shape
    found = torch.empty(channels * 4, height // 2, width // 2, dtype=mean.dtype)
    for place in range(4):
        found[place * channels : (place + 1) * channels] = mean[0, :, place // 2 :: 2, place % 2 :: 2]
    return found


CASES = {
    "f2d": ("flux2", flux2, 1e-5),
    "hv": ("hunyuan", lambda _model, mean: mean[0], 6e-4),  # stored as float16
    "i4": ("flux2", ideogram, 4e-3),  # stored as bfloat16
}


@pytest.mark.long
@pytest.mark.parametrize("name", slow_but(["hv", "i4"], CASES))
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
    (found,) = load_file(tmp_path / f"a_0064x0048_{name}.safetensors").values()
    pixels = torch.from_numpy(rgb).permute(2, 0, 1).unsqueeze(0)
    mean = reference(model, pixels if vae == "flux2" else pixels.unsqueeze(2))[0]
    assert relative_l2(found, wanted(model, mean)) < most


def test_simpletuner(tmp_path: Path) -> None:
    """A bare tensor: the mean in model space, as bfloat16."""
    model = saved("flux", tmp_path / "vae")
    rgb = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    (tmp_path / "photos").mkdir()
    Image.fromarray(rgb).save(tmp_path / "photos" / "a.png")
    request = CacheRequest("simpletuner", "flux", posterior="mean")
    fields: dict[str, Any] = {"vae": str(model.folder), "dtype": "float32", "size": (64, 64)}
    done = run_job(
        Job("cache", (str(tmp_path / "photos"),), output=str(tmp_path / "out"), cache=request, **fields),
        lambda _event: None,
    )
    assert done.done == 1
    name = "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb.pt"  # sha256 of "a"
    found = torch.load(tmp_path / "out" / name, weights_only=True)
    mean = reference(model, torch.from_numpy(rgb).permute(2, 0, 1).unsqueeze(0))[0]
    assert found.dtype == torch.bfloat16
    assert relative_l2(found, (mean[0] - 0.1159) * 0.3611) < 4e-3


def test_a_trainer_that_enlarges_all_images_is_not_told_otherwise(tmp_path: Path) -> None:
    model = saved("flux", tmp_path / "vae")
    Image.new("RGB", (64, 64)).save(tmp_path / "a.png")
    request = CacheRequest("simpletuner", "flux", upscale=False)
    job = Job("cache", (str(tmp_path / "a.png"),), output=str(tmp_path / "out"), vae=str(model.folder), cache=request)
    with pytest.raises(UsageError, match="enlarges all small images; leave --no-upscale out"):
        run_job(job, lambda _event: None)
    assert not (tmp_path / "out").exists()
