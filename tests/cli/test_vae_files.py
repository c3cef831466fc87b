"""VAEs from the shell: single files of weights with nothing else at hand, and folders that are no VAE."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from program import invoke
from published_names import in_checkpoint, latent_diffusion, weights_of
from safetensors.torch import load_file, save_file
from slow_but import slow_but
from tiny_vaes import TinyVAE, relative_l2

TINY = TinyVAE(
    "AutoencoderKL",
    {
        "down_block_types": ("DownEncoderBlock2D",) * 3,
        "up_block_types": ("UpDecoderBlock2D",) * 3,
        "block_out_channels": (32, 32, 64),
    },
    (4, None),
    4,
)


def call(*words: str) -> tuple[int, str, str]:
    done = invoke([*words])
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> torch.nn.Module:
    """A photo, a VAE's file and a checkpoint in the working folder; the model they are of."""
    monkeypatch.chdir(tmp_path)
    model = TINY.build()
    weights = latent_diffusion(weights_of(model))
    save_file({name: value.contiguous() for name, value in weights.items()}, "sdxl_vae.safetensors")
    others = {"conditioner.embedders.0.x": torch.zeros(3), "model.diffusion_model.y": torch.zeros(5)}
    checkpoint = in_checkpoint(weights, "first_stage_model.", others)
    save_file({name: value.contiguous() for name, value in checkpoint.items()}, "model.safetensors")
    levels = np.random.default_rng(0).integers(0, 256, (24, 32, 3), np.uint8)
    Image.fromarray(levels).save("photo.png")
    return model


def mean_of(model: torch.nn.Module) -> torch.Tensor:
    pixels = torch.from_numpy(np.array(Image.open("photo.png"))).permute(2, 0, 1)[None] / 127.5 - 1
    with torch.no_grad():
        return model.encode(pixels).latent_dist.mean[0]  # type: ignore[operator]


OPTIONS = ("--device", "cpu", "--dtype", "fp32")


@pytest.mark.long
@pytest.mark.parametrize("vae", slow_but(["model.safetensors"], ["sdxl_vae.safetensors", "model.safetensors"]))
def test_there_and_back(vae: str, here: torch.nn.Module) -> None:
    assert call("encode", "photo.png", "--vae", vae, "-o", "out", *OPTIONS)[0] == 0
    latents = load_file("out/photo.png.safetensors")["latents"]
    assert relative_l2(latents, mean_of(here)) < 1e-5
    assert call("decode", "out/photo.png.safetensors", "-o", "back.png", *OPTIONS)[0] == 0
    with torch.no_grad():
        own = here.decode(latents[None]).sample[0].permute(1, 2, 0)  # type: ignore[operator]
    levels = ((own + 1) * 127.5).round().clamp(0, 255).numpy()
    assert np.abs(np.asarray(Image.open("back.png")).astype(float) - levels).max() <= 1
    assert call("roundtrip", "photo.png", "--vae", vae, "-o", "again", *OPTIONS)[0] == 0
    assert call("plan", "--shape", "64x64", "--vae", vae, *OPTIONS)[0] == 0


def test_model_space_is_asked_for(here: torch.nn.Module) -> None:
    code, _, told = call("encode", "photo.png", "--vae", "sdxl_vae.safetensors", "--space", "model", *OPTIONS)
    assert code == 2
    assert "(playground2.5) and SDXL (sdxl) have the same layers; say which model it is of (--vae-of)" in " ".join(
        told.split()
    )
    assert not Path("photo.png.safetensors").exists()
    words = ("encode", "photo.png", "--space", "model", "-o", "out", "--overwrite", *OPTIONS, "--vae")
    for named, scale in (
        (("sdxl_vae.safetensors", "--vae-of", "sdxl"), 0.13025),
        (("sdxl_vae.safetensors", "--vae-of", "sd1"), 0.18215),
        (("model.safetensors",), 0.13025),
    ):
        assert call(*words, *named)[0] == 0
        latents = load_file("out/photo.png.safetensors")["latents"]
        assert relative_l2(latents, mean_of(here) * scale) < 1e-5


@pytest.mark.slow
def test_latents_in_model_space_say_how_they_came_there(here: torch.nn.Module) -> None:
    """The VAE alone does not know; its file of latents does."""
    words = ("encode", "photo.png", "--vae", "sdxl_vae.safetensors", *OPTIONS)
    assert call(*words, "-o", "raw")[0] == 0
    assert call(*words, "-o", "model", "--space", "model", "--vae-of", "sdxl")[0] == 0
    for name in ("raw", "model"):
        assert call("decode", f"{name}/photo.png.safetensors", "-o", f"{name}.png", *OPTIONS)[0] == 0
    raw, model = (np.asarray(Image.open(f"{name}.png")).astype(int) for name in ("raw", "model"))
    assert np.abs(raw - model).max() <= 1
    save_file({"latents": load_file("model/photo.png.safetensors")["latents"]}, "other.safetensors")
    words = (
        "decode",
        "other.safetensors",
        "--vae",
        "sdxl_vae.safetensors",
        "--space",
        "model",
        "-o",
        "o.png",
        *OPTIONS,
    )
    assert call(*words)[0] == 2
    assert call(*words, "--vae-of", "sdxl")[0] == 0
    assert np.abs(raw - np.asarray(Image.open("o.png")).astype(int)).max() <= 1


@pytest.mark.slow
def test_the_way_into_model_space_is_the_way_back(here: torch.nn.Module) -> None:
    """Whatever else the VAE is said to be of when it decodes."""
    words = ("encode", "photo.png", "--vae", "sdxl_vae.safetensors", "--vae-of", "sdxl", *OPTIONS)
    for space in ("raw", "model"):
        assert call(*words, "-o", space, "--space", space)[0] == 0
        of = ("--vae", "sdxl_vae.safetensors", "--vae-of", "sd1")
        assert call("decode", f"{space}/photo.png.safetensors", "-o", f"{space}.png", *of, *OPTIONS)[0] == 0
    raw, model = (np.asarray(Image.open(f"{name}.png")).astype(int) for name in ("raw", "model"))
    assert np.abs(raw - model).max() <= 1


DAMAGES: list[dict[str, object]] = [
    {"scale": [0.0]},
    {"scale": [1.0] * 3},
    {"shift": ["x"]},
    {"frames": 0},
    {"shift": []},
]


@pytest.mark.parametrize("damage", slow_but(DAMAGES[1:3], DAMAGES))
def test_constants_of_latents_that_lead_nowhere_are_one_line(damage: dict[str, object]) -> None:
    from safetensors import safe_open

    words = ("encode", "photo.png", "--vae", "sdxl_vae.safetensors", "--vae-of", "sdxl", "--space", "model")
    assert call(*words, "-o", "out", *OPTIONS)[0] == 0
    path = "out/photo.png.safetensors"
    with safe_open(path, "pt") as file:
        metadata = dict(file.metadata())
    space = json.loads(metadata["space"])
    space["constants"] |= damage
    del metadata["checksum"]
    save_file(load_file(path), path, {**metadata, "space": json.dumps(space)})
    code, _, told = call("decode", path, "-o", "back.png", *OPTIONS)
    assert code == 3
    assert "photo.png.safetensors: damaged constants of its model space: " in told


def test_inspect_says_what_it_is_and_how_it_is_known() -> None:
    code, told, _ = call("inspect", "sdxl_vae.safetensors", "model.safetensors")
    assert code == 0
    assert "by the names of Latent Diffusion and their shapes\n" in told
    assert "not known: Stable Diffusion 1 and 2 (sd1), Playground 2.5 (playground2.5) and SDXL (sdxl)" in told
    assert "have the same layers (--vae-of)" in told
    assert "inside a checkpoint (first_stage_model.*)" in told
    assert "SDXL, by the rest of the checkpoint" in told
    found = json.loads(call("inspect", "model.safetensors", "--json")[1])
    assert (found["type"], found["class"], found["found"]["of"]) == ("vae", "AutoencoderKL", "SDXL")
    assert found["parameters"] == sum(value.numel() for value in TINY.build().state_dict().values())


def test_inspect_says_why_it_is_no_vae() -> None:
    weights = load_file("sdxl_vae.safetensors")
    del weights["decoder.norm_out.bias"]
    save_file(weights, "part.safetensors")
    code, told, _ = call("inspect", "part.safetensors")
    assert code == 0
    assert "nearest is AutoencoderKL in Latent Diffusion's names: 1 missing (decoder.norm_out.bias)" in told
    code, _, told = call("encode", "photo.png", "--vae", "part.safetensors")
    assert code == 2
    assert "1 missing" in told


def test_the_models_that_a_file_can_be_of_are_listed() -> None:
    assert "--vae-of sd1, playground2.5, sdxl, sd3, flux" in call("models")[1]


def test_vae_of_needs_a_file() -> None:
    code, _, told = call("encode", "photo.png", "--vae-of", "sdxl")
    assert code == 2
    assert "pass --vae, too" in told
    code, _, told = call("encode", "photo.png", "--vae", "builtin", "--vae-of", "sdxl")
    assert code == 2
    assert "leave --vae-of out" in told


@pytest.mark.slow
def test_a_float16_copy_is_the_same_vae(caplog: pytest.LogCaptureFixture) -> None:
    assert call("encode", "photo.png", "--vae", "sdxl_vae.safetensors", "-o", "out", *OPTIONS)[0] == 0
    weights = load_file("sdxl_vae.safetensors")
    save_file({name: value.half() for name, value in weights.items()}, "half.safetensors")
    words = ("decode", "out/photo.png.safetensors", "-o", "back.png", "--overwrite", *OPTIONS, "--vae")
    assert call(*words, "half.safetensors")[0] == 0
    assert call(*words, "model.safetensors")[0] == 0, "in another layout, inside a checkpoint"
    assert [record.message for record in caplog.records if "the same VAE, stored in another type" in record.message]
    assert call("verify", "out", "--vae", "half.safetensors")[1] == "1 fine\n"
    weights["decoder.conv_out.bias"] += 1
    save_file(weights, "other.safetensors")
    code, _, told = call(*words, "other.safetensors")
    assert code in (2, 3)
    assert "was made by another VAE" in told


@pytest.mark.long
@pytest.mark.parametrize("space", slow_but(["model"], ["raw", "model"]))
def test_the_vae_that_made_latents_is_known_however_it_is_named(space: str, here: torch.nn.Module) -> None:
    """By the same file, with and without ``--vae-of``; and as a folder, in float16, renamed and in a checkpoint."""
    here.save_pretrained("folder")  # type: ignore[operator]
    config = json.loads(Path("folder/config.json").read_text())
    Path("folder/config.json").write_text(json.dumps({**config, "scaling_factor": 0.13025}))
    weights = load_file("sdxl_vae.safetensors")
    save_file({name: value.half() for name, value in weights.items()}, "half.safetensors")
    shutil.copy("folder/diffusion_pytorch_model.safetensors", "renamed.safetensors")
    shutil.copytree("folder", "org/name")
    folders = ("folder", "folder/diffusion_pytorch_model.safetensors", "org/name")
    named = ("sdxl_vae.safetensors", "half.safetensors", "renamed.safetensors", "model.safetensors", *folders)
    makers = ("sdxl_vae.safetensors", "half.safetensors", "model.safetensors", "folder")
    for number, vae in enumerate(makers):
        of = () if vae in (*folders, "model.safetensors") else ("--vae-of", "sdxl")
        words = ("encode", "photo.png", "--vae", vae, *of, "--space", space, "-o", f"out/{number}", *OPTIONS)
        assert call(*words)[0] == 0
    for vae in named:
        assert call("verify", "out", "--vae", vae)[:2] == (0, "4 fine\n"), vae
    weights["decoder.conv_out.bias"] += 1
    save_file(weights, "other.safetensors")
    assert call("verify", "out", "--vae", "other.safetensors")[1].endswith("\n4 stale\n")


def test_another_model_space_is_stale(here: torch.nn.Module) -> None:
    """Of the same weights; raw latents have none."""
    here.save_pretrained("folder")  # type: ignore[operator]
    for space in ("raw", "model"):
        words = ("encode", "photo.png", "--vae", "folder", "--space", space, "-o", f"out/{space}", *OPTIONS)
        assert call(*words)[0] == 0
    config = json.loads(Path("folder/config.json").read_text())
    Path("folder/config.json").write_text(json.dumps({**config, "scaling_factor": 0.5}))
    assert call("verify", "out/raw", "--vae", "folder")[1] == "1 fine\n"
    assert "stale: it is in another model space than this VAE's" in call("verify", "out/model", "--vae", "folder")[1]


def test_latents_without_checksums_of_values_are_read(here: torch.nn.Module) -> None:
    """Those of version 1 that were written before there were any."""
    assert call("encode", "photo.png", "--vae", "sdxl_vae.safetensors", "-o", "out", *OPTIONS)[0] == 0
    from safetensors import safe_open

    path = "out/photo.png.safetensors"
    with safe_open(path, "pt") as file:
        metadata = dict(file.metadata())
    vae = json.loads(metadata["vae"])
    del vae["values"], metadata["checksum"]
    save_file(load_file(path), path, {**metadata, "vae": json.dumps(vae)})
    assert call("decode", path, "-o", "back.png", *OPTIONS)[0] == 0
    save_file({name: value.half() for name, value in load_file("sdxl_vae.safetensors").items()}, "half.safetensors")
    assert "was made by another VAE" in call("decode", path, "-o", "b.png", *OPTIONS, "--vae", "half.safetensors")[2]


def folder_with(model: torch.nn.Module, dtype: torch.dtype, **config: object) -> None:
    """Write diffusers' layout to the folder ``vae``, with changes to its configuration."""
    Path("vae").mkdir()
    weights = {name: value.to(torch.int16).to(dtype) for name, value in model.state_dict().items()}
    save_file(weights, "vae/diffusion_pytorch_model.safetensors")
    (Path("vae") / "config.json").write_text(json.dumps({"_class_name": "AutoencoderKL", **TINY.config, **config}))


@pytest.mark.parametrize(
    ("config", "dtype", "message"),
    [
        ({}, torch.int16, "are no floating-point numbers: 'decoder.conv_in.bias' is stored as I16"),
        ({}, torch.uint16, "are no floating-point numbers: 'decoder.conv_in.bias' is stored as U16"),
        ({"block_out_channels": [32] * 100_000}, torch.float32, "it has no possible number of levels or channels"),
        ({"latent_channels": "four"}, torch.float32, "it has no possible number of levels or channels"),
        ({"latent_channels": [4]}, torch.float32, "it has no possible number of levels or channels"),
        ({"block_out_channels": "abc"}, torch.float32, "diffusers fails with its config.json and weights (TypeError"),
        ({"norm_num_groups": 0}, torch.float32, "config.json and weights (ZeroDivisionError: integer modulo by zero)"),
        ({"quantization_config": {"quant_method": "torchao"}}, torch.float32, "tvae reads no quantised VAE"),
    ],
)
def test_folders_that_no_vae_has(
    config: dict[str, object], dtype: torch.dtype, message: str, here: torch.nn.Module
) -> None:
    import diffusers.models.autoencoders  # noqa: F401 (its import is not measured)

    folder_with(here, dtype, **config)
    began = time.process_time()
    code, _, told = call("encode", "photo.png", "--vae", "vae", "-o", "out", *OPTIONS)
    assert time.process_time() - began < 5
    assert code == 2, told
    assert message in told
    assert len(told.splitlines()) == 1
    assert not Path("out").exists()
    assert "internal error" not in call("inspect", "vae")[2]


@pytest.mark.parametrize(
    ("class_name", "config"),
    [
        ("AutoencoderKLMochi", {"spatial_expansions": [0, 0, 0]}),
        ("AutoencoderKLLTXVideo", {"patch_size": 0}),
        ("AutoencoderKLHunyuanVideo", {"spatial_compression_ratio": 10**15}),
        ("AutoencoderKLFlux2", {"patch_size": []}),
    ],
)
def test_configurations_of_other_classes(class_name: str, config: dict[str, object]) -> None:
    from tiny_vaes import TINY as FAMILIES

    family = FAMILIES[class_name]
    family.build().save_pretrained("vae")
    file = Path("vae") / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | config))
    code, _, told = call("encode", "photo.png", "--vae", "vae", "-o", "out", *OPTIONS)
    assert code == 2, told
    assert class_name in told
    assert len(told.splitlines()) == 1
    assert "internal error" not in call("inspect", "vae")[2]
