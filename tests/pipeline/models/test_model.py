"""Model: opened by name, computing from files, with the numbers of the module."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_vaes import TINY, TinyVAE, relative_l2, result

from tvae.pipeline.errors import UsageError
from tvae.pipeline.models.reference import call_reference, reference_mode
from tvae.pipeline.session.model import open_model


def _saved(tiny: TinyVAE, folder: Path) -> Any:
    model: Any = tiny.build()
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize(
    "family",
    [
        *("AutoencoderKL", "AutoencoderTiny"),
        *(pytest.param(family, marks=pytest.mark.slow) for family in ("AutoencoderKLWan", "AutoencoderKLAllegro")),
    ],
)
def test_a_folder_gives_the_modules_numbers(family: str, tmp_path: Path) -> None:
    tiny = TINY[family]
    module = _saved(tiny, tmp_path)
    model = open_model(str(tmp_path), device="cpu", strip=2)
    x, z = tiny.input("encode", 5, 4), tiny.input("decode", 5, 4)
    with torch.no_grad(), reference_mode(module):
        moments, pixels = result(call_reference(module, "encode", x)), result(call_reference(module, "decode", z))
    posterior = model.encode(x)
    if posterior.logvar is None:
        assert not model.info.posterior
        assert relative_l2(posterior.mean, moments) < 1e-5
    else:
        mean, logvar = moments.chunk(2, dim=1)
        assert relative_l2(posterior.mean, mean) < 1e-5
        assert relative_l2(posterior.logvar, logvar.clamp(-30, 20)) < 1e-5
    assert relative_l2(model.decode(z), pixels) < 1e-5


@pytest.mark.slow
def test_frames_in_the_batch_are_the_models_own_matter(tmp_path: Path) -> None:
    """Stable Video Diffusion takes a clip as a batch; jobs see a clip like any other."""
    tiny = TINY["AutoencoderKLTemporalDecoder"]
    module = _saved(tiny, tmp_path)
    model = open_model(str(tmp_path), device="cpu", strip=2)
    x, z = tiny.input("encode", 4, 3), tiny.input("decode", 4, 3)
    with torch.no_grad():
        mean, pixels = module.encode(x).latent_dist.mean, module.decode(z, num_frames=3).sample
    clip = model.encode(x.transpose(0, 1).unsqueeze(0))
    assert relative_l2(clip.mean[0].transpose(0, 1), mean) < 1e-5
    assert clip.logvar is not None
    assert clip.logvar.shape == clip.mean.shape
    assert relative_l2(model.decode(z.transpose(0, 1).unsqueeze(0))[0].transpose(0, 1), pixels) < 1e-5
    assert "num_frames" not in str(model.plan((1, 4, 3, 4, 3), "decode"))


def test_weights_are_cast_once_to_the_computations_type(tmp_path: Path) -> None:
    module = _saved(TINY["AutoencoderKL"], tmp_path)
    model = open_model(str(tmp_path), device="cpu", dtype="bf16")
    z = TINY["AutoencoderKL"].input("decode", 6, 5)
    out = model.decode(z)
    assert out.dtype == torch.bfloat16
    with torch.no_grad():
        assert relative_l2(out, module.to(torch.bfloat16).float().decode(z).sample) < 0.03


def test_force_upcast_decides_over_float16(tmp_path: Path) -> None:
    tiny = TINY["AutoencoderKL"]
    _saved(TinyVAE("AutoencoderKL", {**tiny.config, "force_upcast": True}, tiny.latent, tiny.scale), tmp_path / "yes")
    _saved(TinyVAE("AutoencoderKL", {**tiny.config, "force_upcast": False}, tiny.latent, tiny.scale), tmp_path / "no")
    assert open_model(str(tmp_path / "yes"), device="cpu", dtype="fp16").dtype == torch.float32
    assert open_model(str(tmp_path / "no"), device="cpu", dtype="fp16").dtype == torch.float16


def test_a_model_says_who_it_is(tmp_path: Path) -> None:
    _saved(TINY["AutoencoderKL"], tmp_path)
    info = open_model(str(tmp_path), device="cpu").info
    assert (info.class_name, info.spatial_factor, info.temporal_factor) == ("AutoencoderKL", 4, None)
    assert len(info.weights_sha256) == len(info.config_hash) == 64


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dtype": "float8"}, "float8"),
        ({"preset": "rtx9000"}, "rtx9000"),
        ({"device": "toaster"}, "toaster"),
        ({"strip": 0}, "strip"),
    ],
)
def test_wrong_options_are_told_before_any_work(options: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=words):
        open_model(str(tmp_path / "not looked for"), **options)


@pytest.mark.slow
def test_from_the_second_run_on_diffusers_is_not_imported(tmp_path: Path) -> None:
    """Graphs are on disk by then; the weights come from the file."""
    _saved(TINY["AutoencoderTiny"], tmp_path)
    model = open_model(str(tmp_path), device="cpu")
    model.encode(torch.zeros(1, 3, 64, 48))
    model.decode(torch.zeros(1, 4, 16, 12))
    code = f"""
import sys, torch
from tvae.pipeline.session.model import open_model
model = open_model({str(tmp_path)!r}, device="cpu")
assert model.decode(model.encode(torch.zeros(1, 3, 32, 80)).mean).shape == (1, 3, 32, 80)
print([m for m in ("diffusers", "torch.export", "sympy") if m in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "diffusers" not in done.stdout
    assert "sympy" not in done.stdout


def test_each_weight_is_held_once_and_as_it_is_used(tmp_path: Path) -> None:
    """Of the side that ran, in the layout of the computation; the graph's module is elsewhere."""
    TINY["AutoencoderKL"].build().save_pretrained(tmp_path / "vae")
    model = open_model(str(tmp_path / "vae"), preset="cpu")
    last = model.preset.memory_layout == "channels_last"
    model.decode(torch.randn(1, 4, 6, 5))
    assert not any(name.startswith("encoder.") for name in model._stored)
    assert model._session._weights._done == {}
    kernels = [t for t in model._stored.values() if t.ndim == 4]
    assert kernels
    assert all(t.is_contiguous(memory_format=torch.channels_last if last else torch.contiguous_format) for t in kernels)
    model.encode(torch.randn(1, 3, 48, 40))
    assert any(name.startswith("encoder.") for name in model._stored)
