"""A VAE in a file of ``torch.save`` from the shell: refused by default, and with ``--allow-pickle`` as any other."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from program import invoke
from published_names import in_checkpoint, latent_diffusion, weights_of
from safetensors.torch import load_file, save_file
from single_files import kl
from slow_but import slow_but

from tvae.pipeline.bench.vae import VaeCase

OPTIONS = ("--device", "cpu", "--dtype", "fp32")


def call(*words: str) -> tuple[int, str, str]:
    done = invoke([*words])
    return done.exit_code, done.stdout, done.stderr


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A photo, and one VAE in four files, in the working folder."""
    monkeypatch.chdir(tmp_path)
    weights = latent_diffusion(weights_of(kl().build()))
    save_file({name: value.contiguous() for name, value in weights.items()}, "vae.safetensors")
    torch.save(weights, "vae.pt")
    torch.save({"state_dict": {name: value.half() for name, value in weights.items()}}, "half.pth")
    others = {"cond_stage_model.x": torch.zeros(3), "model_ema.decay": torch.zeros(())}
    torch.save({"state_dict": in_checkpoint(weights, "first_stage_model.", others)}, "model.ckpt")
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (24, 32, 3), np.uint8)).save("photo.png")


@pytest.mark.long
@pytest.mark.parametrize("vae", slow_but(["vae.pt"], ["vae.pt", "model.ckpt"]))
def test_there_and_back(vae: str) -> None:
    words = ("encode", "photo.png", "-o", "out", "--vae", vae, *OPTIONS)
    code, _, told = call(*words)
    assert (code, told.count("\n")) == (2, 1)
    assert "is a pickled file" in told
    assert "save its tensors as safetensors, or pass --allow-pickle" in told
    assert not Path("out").exists()
    assert call(*words, "--allow-pickle")[0] == 0
    assert call("encode", "photo.png", "-o", "plain", "--vae", "vae.safetensors", *OPTIONS)[0] == 0
    one, other = (load_file(f"{folder}/photo.png.safetensors")["latents"] for folder in ("out", "plain"))
    assert torch.equal(one, other)
    code, _, told = call("decode", "out/photo.png.safetensors", "-o", "back.png", *OPTIONS)
    assert code == 3, "latents are no reason to open it"
    assert "pass --allow-pickle" in told
    assert call("decode", "out/photo.png.safetensors", "-o", "back.png", "--allow-pickle", *OPTIONS)[0] == 0
    assert call("decode", "plain/photo.png.safetensors", "-o", "plain.png", *OPTIONS)[0] == 0
    assert np.array_equal(*(np.asarray(Image.open(name)) for name in ("back.png", "plain.png")))
    for made_by in (("vae.safetensors",), ("half.pth", "--allow-pickle"), ("model.ckpt", "--allow-pickle")):
        assert call("verify", "out", "plain", "--vae", *made_by)[1] == "2 fine\n"


@pytest.mark.slow
def test_every_command_that_takes_a_vae() -> None:
    torch.save(torch.randn(4, 4, 4), "z.pt")
    blocks = {"down_block_types": ("DownEncoderBlock2D",) * 4, "up_block_types": ("UpDecoderBlock2D",) * 4}
    torch.save(kl(block_out_channels=(32,) * 4, **blocks).build().state_dict(), "vae.pt")
    cache = ("cache", "photo.png", "--for", "ai-toolkit", "--arch", "sd1", "--size", "64x64", "-o", "cached")
    for words in (
        ("plan", "--shape", "64x64"),
        ("roundtrip", "photo.png", "-o", "again"),
        ("convert", "z.pt", "z.npy", "--space", "raw"),
        (*cache, "--vae-of", "sd1"),
    ):
        options = () if words[0] == "convert" else OPTIONS
        code, _, told = call(*words, "--vae", "vae.pt", *options)
        assert (code, "--allow-pickle" in told) == (2, True), words
        code, _, told = call(*words, "--vae", "vae.pt", "--allow-pickle", *options)
        assert code == 0, told


def test_inspect_says_what_it_is() -> None:
    code, told, _ = call("inspect", "vae.pt", "half.pth", "model.ckpt")
    assert code == 0
    assert told.count("an image VAE: AutoencoderKL") == 3
    assert told.count("pickled (pass --allow-pickle)") == 3
    assert "million, float16, " in told
    assert "inside a checkpoint (first_stage_model.*)" in told
    assert "Stable Diffusion 1 and 2, by the rest of the checkpoint" in told
    ours, plain = (json.loads(call("inspect", name, "--json")[1]) for name in ("vae.pt", "vae.safetensors"))
    names = ("class", "config", "config_sha256", "parameters", "dtype", "found", "geometry")
    assert [ours[name] for name in names] == [plain[name] for name in names]
    assert (ours["pickled"], plain["pickled"]) == (True, False)
    Path("vae.safetensors").rename("vae.sft")
    assert "an image VAE: AutoencoderKL" in call("inspect", "vae.sft")[1]


def test_inspect_of_other_files_of_torch_save() -> None:
    torch.save({"lora.down.weight": torch.zeros(3, 2), "n": 1}, "lora.ckpt")
    code, told, _ = call("inspect", "lora.ckpt")
    assert code == 0
    assert "1 tensor of another program\n  lora.down.weight  3x2, float32\n" in told

    class Runs:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.system, ("touch ran",)

    for name in ("hostile.pt", "hostile.ckpt", "hostile.bin"):
        torch.save(Runs(), name)
        code, _, told = call("inspect", name)
        assert (code, told.count("\n")) == (3, 1)
        assert "objects of Python's" in told
        assert call("encode", "photo.png", "--vae", name, "--allow-pickle", *OPTIONS)[0] == 2
    assert not Path("ran").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("bench", "vae", "--sizes", "16x16", "--rivals", "diffusers", "--repeat", "1", "--quiet"),
        ("bench", "job", "photo.png", "--quiet"),
        ("preset", "tune", "--quick", "--size", "16", "-o", "mine.toml"),
    ],
    ids=" ".join,
)
def test_what_measures_a_vae_takes_it_too(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    from tvae.pipeline.bench.tune import Trial, Tuner

    monkeypatch.setattr(Tuner, "__iter__", lambda self: iter([Trial("strip_rows", "16", 0.5, True)]))
    asked = (*words, "--device", "cpu", "--vae")
    code, shown, told = call(*asked, "model.ckpt")
    assert code != 0
    assert "is a pickled file" in shown + told
    assert call(*asked, "model.ckpt", "--allow-pickle", "--vae-of", "sdxl")[0] == 0
    code, _, told = call(*asked, "model.ckpt", "--allow-pickle", "--vae-of", "wan")
    assert code != 0
    if words[1] != "job":
        assert call(*asked[:-1], "--config", "sdxl", "--allow-pickle")[0] == 2


@pytest.mark.slow
def test_first_use_is_measured_of_the_same_file(monkeypatch: pytest.MonkeyPatch) -> None:
    from tvae.pipeline.bench import vae
    from tvae.pipeline.bench.first_use import FirstUse, FirstUseModel, first_seconds

    asked: list[FirstUseModel] = []

    def measured(_rival: str, case: VaeCase, subject: FirstUseModel) -> FirstUse:
        asked.append(subject)
        assert first_seconds("tvae", asdict(case), asdict(subject)) > 0  # as the other process does it
        return FirstUse(7.0, 1.5)

    monkeypatch.setattr(vae, "first_use", measured)
    words = ("bench", "vae", "--sizes", "16x16", "--rivals", "diffusers", "--repeat", "1", "--first-use", *OPTIONS)
    assert call(*words, "--vae", "model.ckpt", "--allow-pickle", "--vae-of", "sd1")[0] == 0
    assert {(one.vae_of, one.allow_pickle) for one in asked} == {("sd1", True)}
