"""SeedVR2's VAE from a file of weights: found, loaded and run from the shell, or refused in one clear line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
from program import invoke
from safetensors.torch import load_file, save_file
from tiny_vaes import relative_l2, waves
from torch import Tensor

from tvae.pipeline.errors import UsageError
from tvae.pipeline.files.tensor_header import TensorSpec
from tvae.pipeline.latents import open_latents
from tvae.pipeline.models.load import load_module, locate_vae
from tvae.pipeline.models.seedvr2 import SeedVR2VAE
from tvae.pipeline.models.seedvr2.checkpoint import config_of
from tvae.pipeline.session.model import open_model

NAME = "ema_vae_fp16.safetensors"
CONFIG = {"block_out_channels": (32, 64, 32), "layers_per_block": 1, "latent_channels": 4}
"""Small, but of the published 32 groups, which no shape tells."""


@pytest.fixture(scope="module")
def module() -> SeedVR2VAE:
    torch.manual_seed(0)
    return SeedVR2VAE(**CONFIG).eval()


@pytest.fixture
def file(module: SeedVR2VAE, tmp_path: Path) -> Path:
    """Weights alone in a folder of their own, in float32."""
    (tmp_path / "SEEDVR2").mkdir()
    save_file(module.state_dict(), tmp_path / "SEEDVR2" / NAME)
    return tmp_path / "SEEDVR2" / NAME


def test_the_published_file_is_recognised() -> None:
    with torch.device("meta"):
        state = SeedVR2VAE().state_dict()
    tensors = {name: TensorSpec("F16", tuple(value.shape)) for name, value in state.items()}
    assert config_of(tensors, Path(NAME)) == SeedVR2VAE(**CONFIG).config | {
        "block_out_channels": (128, 256, 512, 512),
        "layers_per_block": 2,
        "latent_channels": 16,
    }


@pytest.mark.parametrize("config", [CONFIG, {**CONFIG, "temporal_scale_num": 1}, {"block_out_channels": (32, 64)}])
def test_the_configuration_is_read_off_the_shapes(config: dict[str, Any]) -> None:
    with torch.device("meta"):
        module = SeedVR2VAE(**config)
    tensors = {name: TensorSpec("F32", tuple(value.shape)) for name, value in module.state_dict().items()}
    found = config_of(tensors, Path("x"))
    expected = module.config["temporal_scale_num"] if len(module.config["block_out_channels"]) > 2 else 1
    assert found == {**module.config, "temporal_scale_num": expected}


@pytest.mark.parametrize("named", ["file", "folder"])
def test_a_file_or_its_folder_is_the_module(file: Path, module: SeedVR2VAE, named: str) -> None:
    save_file({"blocks.0.ada.vid.attn_gate": torch.zeros(3)}, file.with_name("seedvr2_ema_3b_fp16.safetensors"))
    (file.parent / "broken.safetensors").write_bytes(b"half a download")
    source = locate_vae(str(file if named == "file" else file.parent))
    assert (source.class_name, source.weight_files, source.stored_dtype) == ("SeedVR2VAE", (file,), torch.float32)
    assert source.config == module.config
    loaded = load_module(source, torch.float64)
    assert not loaded.training
    assert not any(weight.requires_grad for weight in loaded.parameters())
    expected = module.state_dict()
    assert all(torch.equal(value, expected[name].double()) for name, value in loaded.state_dict().items())


def test_an_opened_model_says_who_it_is(file: Path) -> None:
    info = open_model(str(file), device="cpu", dtype="fp32").info
    assert (info.class_name, info.spatial_factor, info.temporal_factor, info.lead_frames) == ("SeedVR2VAE", 4, 4, 1)
    assert (info.latent_channels, info.in_channels, info.posterior) == (4, 3, True)
    mean = waves((1, 4, 2, 3, 2))
    assert relative_l2(info.space.to_model(mean), 0.9152 * mean) < 1e-6


@pytest.mark.slow
def test_an_opened_model_computes(file: Path, module: SeedVR2VAE) -> None:
    """A clip as a whole; test_streaming has clips of such a file in steps, in every run."""
    model = open_model(str(file), device="cpu", dtype="fp32", strip=2)
    x = waves((1, 3, 5, 24, 16))
    posterior = model.encode(x)
    with torch.no_grad():
        expected = module.encode(x).latent_dist
        assert relative_l2(posterior.mean, expected.mean) < 1e-5
        assert posterior.logvar is not None
        assert relative_l2(posterior.logvar, expected.logvar) < 1e-5
        assert relative_l2(model.decode(expected.mean), module.decode(expected.mean).sample) < 1e-5


@pytest.mark.slow
def test_from_the_shell_with_a_clip_of_ten_frames(file: Path, tmp_path: Path) -> None:
    """10 frames become 13 for the VAE (4k + 1) and 10 again behind it."""
    source = tmp_path / "clip.mp4"
    with av.open(str(source), "w") as container:
        stream = container.add_stream("libx264", rate=10)
        stream.width, stream.height, stream.pix_fmt = 32, 24, "yuv420p"
        for n in range(10):
            picture = np.full((24, 32, 3), 20 * n, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
    for arguments in (
        ["encode", source, "-o", tmp_path / "latents", "--vae", file],
        ["decode", tmp_path / "latents" / "clip.mp4.latents", "-o", tmp_path / "out.mp4"],
    ):
        done = invoke([*map(str, arguments), "--device", "cpu", "--dtype", "fp32", "--no-progress"])
        assert done.exit_code == 0, done.output
    parts = [part.tensors["latents"] for part in open_latents(tmp_path / "latents" / "clip.mp4.latents")]
    assert torch.cat(parts, dim=1).shape == (4, 4, 6, 8)
    with av.open(str(tmp_path / "out.mp4")) as container:
        frames = list(container.decode(video=0))
    assert [(frame.width, frame.height) for frame in frames] == [(32, 24)] * 10


Weights = dict[str, Tensor]


def missing(weights: Weights) -> None:
    del weights["decoder.conv_out.bias"], weights["encoder.conv_norm_out.weight"]


def missing_telling(weights: Weights) -> None:
    del weights["encoder.down_blocks.1.resnets.0.conv1.weight"]


def misshapen(weights: Weights) -> None:
    weights["decoder.up_blocks.1.resnets.0.conv2.weight"] = torch.zeros(32, 32, 1, 3, 3)


def flat(weights: Weights) -> None:
    weights["encoder.conv_in.weight"] = torch.zeros(32, 3, 3, 3)


def extra(weights: Weights) -> None:
    weights["quant_conv.weight"] = torch.zeros(8, 8, 1, 1, 1)


def ungrouped(weights: Weights) -> None:
    with torch.device("meta"):
        shapes = SeedVR2VAE(block_out_channels=(8, 8), norm_num_groups=8).state_dict()
    weights.clear()
    weights.update({name: torch.zeros(value.shape) for name, value in shapes.items()})


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (missing, r"they lack decoder\.conv_out\.bias and 1 more"),
        (missing_telling, r"they lack encoder\.down_blocks\.1\.resnets\.0\.conv1\.weight"),
        (misshapen, r"another shape for decoder\.up_blocks\.1\.resnets\.0\.conv2\.weight"),
        (flat, r"another shape for encoder\.conv_in\.weight"),
        (extra, r"hold the unknown quant_conv\.weight"),
        (ungrouped, r"8, 8 channels, not multiples of 32"),
    ],
)
def test_weights_that_do_not_fit(file: Path, damage: Callable[[Weights], None], reason: str) -> None:
    weights = load_file(file)
    damage(weights)
    save_file(weights, file)
    for spec in (file, file.parent):
        with pytest.raises(UsageError, match=reason) as error:
            locate_vae(str(spec))
        assert str(file) in str(error.value)
        assert "\n" not in str(error.value)


def test_files_that_are_no_vae(file: Path) -> None:
    for name, content, reason in (
        ("ema_vae.pth", b"pickle", "is a pickled file, .* pass --allow-pickle"),
        ("half.safetensors", file.read_bytes()[:-10], "cannot be read: damaged"),
    ):
        other = file.with_name(name)
        other.write_bytes(content)
        with pytest.raises(UsageError, match=reason):
            locate_vae(str(other))
    save_file({"blocks.0.ada.vid.attn_gate": torch.zeros(3)}, file.with_name("dit.safetensors"))
    with pytest.raises(UsageError, match="is a file of no VAE that tvae knows: 1 tensor"):
        locate_vae(str(file.with_name("dit.safetensors")))


def test_folders_that_do_not_say_which(file: Path) -> None:
    second = file.with_name("ema_vae_copy.safetensors")
    second.write_bytes(file.read_bytes())
    with pytest.raises(UsageError, match=rf"several VAEs: ema_vae_copy\.safetensors, {NAME}; name one"):
        locate_vae(str(file.parent))
    second.unlink()
    file.rename(file.with_name("ema_vae.pth"))
    with pytest.raises(UsageError, match="holds pickled weights only"):
        locate_vae(str(file.parent))
    file.with_name("ema_vae.pth").unlink()
    with pytest.raises(UsageError, match=r"there is no '.*config\.json'"):
        locate_vae(str(file.parent))


def test_a_configuration_that_names_it_cannot_replace_the_weights(file: Path) -> None:
    """In diffusers' layout, too, the tensors say what is there."""
    file.with_name("config.json").write_text('{"_class_name": "SeedVR2VAE"}')
    save_file({"x": torch.zeros(1)}, file.with_name("diffusion_pytorch_model.safetensors"))
    with pytest.raises(UsageError, match="are not those of SeedVR2's VAE"):
        load_module(locate_vae(str(file.parent)))
