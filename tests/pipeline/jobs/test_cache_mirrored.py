"""``tvae cache --for ai-toolkit --flip``: ai-toolkit mirrors an image, then scales and cuts it at the same left edge.

Where a cut takes one column more on one side than on the other, that is not the mirror image of what is cut otherwise.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cache_vaes import reference, saved
from PIL import Image, ImageOps
from safetensors import safe_open
from tiny_vaes import relative_l2
from torch import Tensor

from tvae.pipeline.caches import CacheRequest
from tvae.pipeline.jobs import Job, run_job


def seen(image: Image.Image) -> Tensor:
    """[3, H, W] of an image of 203x331, scaled to 99x160, of which 96x160 are kept: one column goes left, two right."""
    pixels = image.resize((99, 160), Image.Resampling.BICUBIC).crop((1, 0, 97, 160))
    return torch.from_numpy(np.array(pixels)).permute(2, 0, 1)


@pytest.mark.long
@pytest.mark.parametrize(("name", "architecture"), [("sdxl", "sdxl"), ("wan", "wan21")])
def test_both_are_what_ai_toolkit_encodes(tmp_path: Path, name: str, architecture: str) -> None:
    model: Any = saved(name, tmp_path / "vae")
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (331, 203, 3), dtype=np.uint8))
    image.save(tmp_path / "a.png")
    request = CacheRequest("ai-toolkit", architecture, flip=True, posterior="mean")
    fields: dict[str, Any] = {"output": str(tmp_path), "vae": str(model.folder), "dtype": "float32", "size": (128, 128)}
    assert run_job(Job("cache", (str(tmp_path / "a.png"),), cache=request, **fields), lambda _event: None).done == 1
    found = {}
    for path in (tmp_path / "_latent_cache").iterdir():
        with safe_open(path, "pt") as file:
            found["flip_x" in file.metadata()] = file.get_tensor("latent")
    assert found.keys() == {False, True}
    for flipped, given in ((False, image), (True, ImageOps.mirror(image))):
        pixels = seen(given).unsqueeze(0)
        if name == "wan":
            mean = reference(model, pixels.unsqueeze(2))[0][0]
            shift, scale = (torch.tensor(one).double().view(-1, 1, 1, 1) for one in latent_statistics(model))
            wanted = (mean - shift) / scale
        else:
            wanted = reference(model, pixels)[0][0] * 0.13025
        assert found[flipped].shape == wanted.shape
        assert relative_l2(found[flipped], wanted) < 1e-5


def latent_statistics(model: Any) -> tuple[list[float], list[float]]:
    return model.config.latents_mean, model.config.latents_std
