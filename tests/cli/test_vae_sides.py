"""Files with one side of a VAE from the shell: what they lack is refused before any work."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from program import invoke
from safetensors.torch import load_file, save_file
from taesd_naive import decoded, encoded, random_file
from tiny_vaes import relative_l2

OPTIONS = ("--device", "cpu", "--dtype", "fp32")
ENCODER, DECODER = "one/taesd_encoder.safetensors", "two/taesd_decoder.safetensors"


def call(*words: str) -> tuple[int, str, str]:
    done = invoke([*words])
    return done.exit_code, done.stdout, " ".join(done.stderr.split())


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A photo; an encoder and a decoder, each in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    for path, side in ((ENCODER, "encoder"), (DECODER, "decoder")):
        Path(path).parent.mkdir()
        save_file(random_file(side, "plain", 4), path)
    levels = np.random.default_rng(0).integers(0, 256, (24, 32, 3), np.uint8)
    Image.fromarray(levels).save("photo.png")


@pytest.mark.long
def test_each_does_what_it_can() -> None:
    """Latents of the encoder are another VAE's to the decoder: that they belong together, the user says."""
    assert call("encode", "photo.png", "--vae", ENCODER, "-o", "out", *OPTIONS)[0] == 0
    latents = load_file("out/photo.png.safetensors")["latents"]
    pixels = torch.from_numpy(np.array(Image.open("photo.png"))).permute(2, 0, 1)[None] / 127.5 - 1
    assert relative_l2(latents, encoded(load_file(ENCODER), pixels, "plain")[0]) < 1e-5
    code, _, told = call("decode", "out/photo.png.safetensors", "--vae", DECODER, "-o", "back.png", *OPTIONS)
    assert code == 3
    assert "--allow-other-vae" in told
    words = ("--vae", DECODER, "--allow-other-vae", "-o", "back.png", *OPTIONS)
    assert call("decode", "out/photo.png.safetensors", *words)[0] == 0
    own = decoded(load_file(DECODER), latents[None], "plain")[0].permute(1, 2, 0)
    levels = ((own + 1) * 127.5).round().clamp(0, 255).numpy()
    assert np.abs(np.asarray(Image.open("back.png")).astype(float) - levels).max() <= 1


@pytest.mark.long
def test_what_it_cannot_is_refused_before_any_work() -> None:
    assert call("encode", "photo.png", "--vae", ENCODER, "-o", "out", *OPTIONS)[0] == 0
    latents = "out/photo.png.safetensors"
    no_encoder = "cannot encode: it holds a decoder alone, and there is no '{}' beside it"
    for words in (
        ("encode", "photo.png", "--vae", DECODER, "-o", "x"),
        ("roundtrip", "photo.png", "--vae", DECODER, "-o", "x"),
        ("cache", ".", "--for", "kohya", "--vae", DECODER, "-o", "x"),
        ("plan", "photo.png", "--vae", DECODER, "--side", "encode"),
    ):
        code, _, told = call(*words, *OPTIONS)
        assert (code, no_encoder.format("two/taesd_encoder.safetensors") in told) == (2, True), (words, told)
    no_decoder = "cannot decode: it holds an encoder alone, and there is no 'one/taesd_decoder.safetensors' beside it"
    for words in (
        ("decode", latents, "--vae", ENCODER, "-o", "x"),
        ("roundtrip", "photo.png", "--vae", ENCODER, "-o", "x"),
        ("plan", latents, "--vae", ENCODER, "--side", "decode"),
    ):
        code, _, told = call(*words, *OPTIONS)
        assert (code, no_decoder in told) == (2, True), (words, told)
    assert not Path("x").exists()


@pytest.mark.parametrize(("vae", "side", "other"), [(ENCODER, "encode", "decode"), (DECODER, "decode", "encode")])
def test_a_plan_is_of_the_side_that_is_there(vae: str, side: str, other: str) -> None:
    code, told, why = call("plan", "--shape", "64x64", "--vae", vae, *OPTIONS)
    assert (code, f"cannot {other}" in why, told != "") == (0, True, True)
    code, told, why = call("plan", "--shape", "64x64", "--vae", vae, "--json", *OPTIONS)
    assert (code, [json.loads(line)["side"] for line in told.splitlines()], why) == (0, [side], "")


@pytest.mark.long
def test_inspect_says_what_is_lacking() -> None:
    code, told, _ = call("inspect", DECODER)
    assert code == 0
    assert f"lacks     VAE '{DECODER}' cannot encode: it holds a decoder alone" in told
    found = json.loads(call("inspect", DECODER, "--json")[1])
    assert (found["found"]["absent"], [*found["lacks"]]) == ("encode", ["encode"])
    Path(ENCODER).rename("two/taesd_encoder.safetensors")
    told = call("inspect", "two")[1]
    assert "lacks" not in told
    assert "in 2 files" in told
    assert call("roundtrip", "photo.png", "--vae", DECODER, "-o", "back.png", *OPTIONS)[0] == 0
