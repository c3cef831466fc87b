"""Pictures of every sort through the whole program with the built-in VAE."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from tvae.pipeline.models.load import load_module, locate_vae

Tvae = Callable[..., Any]


def _photo(width: int, height: int) -> Image.Image:
    y, x = np.mgrid[0:height, 0:width]
    rgb = np.stack([128 + 90 * np.sin(x / 9), 128 + 90 * np.cos(y / 7), 40 + (x + y) * 120 / (width + height)], -1)
    return Image.fromarray(rgb.clip(0, 255).astype(np.uint8))


def _pixels(path: Path) -> Any:
    with Image.open(path) as image:
        return np.array(image.convert("RGB"))


@pytest.mark.long
def test_the_latents_are_the_untiled_models(tvae: Tvae, tmp_path: Path) -> None:
    """Encode and decode by the program against diffusers on the same picture, in one call each."""
    photo = _photo(152, 104)
    photo.save(tmp_path / "p.png")
    tvae("encode", tmp_path / "p.png", "-o", tmp_path / "l", "--strip", 3, "--device", "cpu")
    module: Any = load_module(locate_vae("builtin"), torch.float32)
    x = torch.from_numpy(np.array(photo)).permute(2, 0, 1)[None].float() / 127.5 - 1
    with torch.no_grad():
        mean = module.encode(x).latent_dist.mean
        pixels = module.decode(mean).sample
    stored = load_file(tmp_path / "l" / "p.png.safetensors")["latents"]
    assert stored.shape == mean[0].shape
    assert (stored - mean[0]).norm() / mean.norm() < 1e-5
    tvae("decode", tmp_path / "l", "-o", tmp_path / "d", "--strip", 5, "--device", "cpu")
    out = _pixels(tmp_path / "d" / "p.png").astype(int)
    exact = ((pixels[0].clamp(-1, 1) + 1) * 127.5).permute(1, 2, 0).numpy()
    assert np.abs(out - exact).max() < 0.51


@pytest.mark.slow
def test_unusual_pictures_work(tvae: Tvae, tmp_path: Path) -> None:
    """One pixel, odd sizes, grey, palette, alpha, 16 bits, two names that differ in suffix, a tree of folders."""
    folder = tmp_path / "in"
    (folder / "deep" / "er").mkdir(parents=True)
    _photo(1, 1).save(folder / "one.png")
    _photo(3, 5).save(folder / "odd.png")
    _photo(33, 18).convert("L").save(folder / "grey.png")
    _photo(33, 18).convert("P").save(folder / "palette.gif")
    _photo(33, 18).convert("RGBA").save(folder / "alpha.png")
    Image.fromarray((np.arange(20 * 30).reshape(20, 30) * 100).astype(np.uint16)).save(folder / "deep.png")
    _photo(20, 12).save(folder / "same.png")
    _photo(20, 12).save(folder / "same.jpg")
    _photo(20, 12).save(folder / "deep" / "er" / "leaf.png")
    done = tvae("encode", folder, "--recursive", "-o", tmp_path / "l", "--device", "cpu")
    assert "alpha" in done.stderr
    assert "16" in done.stderr
    names = {str(p.relative_to(tmp_path / "l")) for p in (tmp_path / "l").rglob("*.safetensors")}
    assert {"same.png.safetensors", "same.jpg.safetensors"} <= names
    assert str(Path("deep", "er", "leaf.png.safetensors")) in names
    assert len(names) == 9
    tvae("decode", tmp_path / "l", "--recursive", "-o", tmp_path / "d", "--device", "cpu")
    sizes = {p.name: _pixels(p).shape[1::-1] for p in (tmp_path / "d").rglob("*.png")}
    assert sizes["one.png"] == (1, 1)
    assert sizes["odd.png"] == (3, 5)
    assert sizes["palette.gif.png"] == (33, 18)
    assert sizes["same.jpg.png"] == sizes["same.png"] == (20, 12)
    assert (tmp_path / "d" / "deep" / "er" / "leaf.png").is_file()


@pytest.mark.slow
def test_bad_inputs_fail_alone_and_leave_nothing(tvae: Tvae, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    _photo(40, 40).save(folder / "good.png")
    whole = (folder / "good.png").read_bytes()
    (folder / "cut.png").write_bytes(whole[: len(whole) // 2])
    (folder / "text.mp4").write_text("no film")
    (folder / "zero.jpg").touch()
    inputs = [folder / n for n in ("cut.png", "text.mp4", "zero.jpg", "good.png")]
    done = tvae("encode", *inputs, "-o", tmp_path / "l", "--device", "cpu", code=3)
    for name in ("cut.png", "text.mp4", "zero.jpg"):
        lines = [line for line in done.stderr.splitlines() if name in line and "error" in line]
        assert len(lines) == 1, done.stderr
    assert [p.name for p in (tmp_path / "l").iterdir()] == ["good.png.safetensors"]


@pytest.mark.slow
def test_bad_latents_fail_alone(tvae: Tvae, tmp_path: Path) -> None:
    _photo(40, 40).save(tmp_path / "p.png")
    tvae("encode", tmp_path / "p.png", "-o", tmp_path / "l", "--device", "cpu")
    good = tmp_path / "l" / "p.png.safetensors"
    with safe_open(good, "pt") as file:
        metadata = file.metadata()
    del metadata["checksum"]
    tensors = load_file(good)
    save_file({"latents": tensors["latents"] * float("nan")}, tmp_path / "l" / "nan.safetensors", metadata)
    vae = json.loads(metadata["vae"])
    assert vae["weights_sha256"] == locate_vae("builtin").weights_sha256
    vae |= {"weights_sha256": "0" * 64, "values": ["0" * 32] * len(vae["values"])}
    other = metadata | {"vae": json.dumps(vae)}
    save_file(tensors, tmp_path / "l" / "other.safetensors", other)
    hub = {k: v.replace('"id": "builtin"', '"id": "someone/else"') for k, v in metadata.items()}
    assert hub != metadata
    save_file(tensors, tmp_path / "l" / "hub.safetensors", hub)
    (tmp_path / "l" / "cut.safetensors").write_bytes(good.read_bytes()[:300])
    done = tvae("decode", tmp_path / "l", "-o", tmp_path / "d", "--device", "cpu", code=3)
    for name in ("nan", "other", "cut", "hub"):
        assert len([line for line in done.stderr.splitlines() if f"{name}.safetensors" in line]) == 1, done.stderr
    assert "pass --vae someone/else" in done.stderr  # a file is no reason to use the network
    assert [p.name for p in (tmp_path / "d").iterdir()] == ["p.png"]


WRONG = [
    ["encode", "nothing.png", "-o", "l"],
    ["encode", "p.png", "-o", "l", "--preset", "rtx9000"],
    ["encode", "p.png", "-o", "l", "--dtype", "int3"],
    ["encode", "p.png", "-o", "l", "--posterior", "worst"],
    ["encode", "p.png", "-o", "l", "--vae", "pickled"],
    ["roundtrip", "p.png", "-o", "p.png"],
    ["encode", "p.png", "-o", "p.png/below"],
    ["encode", "p.png", "-o", "l", "--device", "toaster"],
]

ONE_BY_ONE = """
import contextlib, io, json, pathlib, sys
from tvae.cli.app import main
found = []
for arguments in json.loads(sys.argv[1]):
    sys.argv[1:] = arguments
    code, told = 0, io.StringIO()
    with contextlib.redirect_stderr(told):
        try:
            main()
        except SystemExit as end:
            code = end.code
    found.append([code, told.getvalue(), pathlib.Path("l").exists()])
print(json.dumps(found))
"""


@pytest.mark.long
def test_wrong_usage_is_told_before_any_work(tmp_path: Path, monkeypatch: Any) -> None:
    """In one process, to start it once: exit code 2, one line, nothing written."""
    monkeypatch.chdir(tmp_path)
    _photo(16, 16).save("p.png")
    before = Path("p.png").read_bytes()
    Path("pickled").mkdir()
    Path("pickled", "config.json").write_text(json.dumps({"_class_name": "AutoencoderKL"}))
    Path("pickled", "diffusion_pytorch_model.bin").write_bytes(b"not opened")
    command = [sys.executable, "-c", ONE_BY_ONE, json.dumps(WRONG)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    for arguments, (code, told, written) in zip(WRONG, json.loads(done.stdout), strict=True):
        assert (code, len(told.strip().splitlines()), written) == (2, 1, False), f"{arguments}: {told}"
    assert Path("p.png").read_bytes() == before


@pytest.mark.slow
def test_roundtrip_quality_of_the_builtin(tvae: Tvae, shared_media: Path, tmp_path: Path) -> None:
    photo = tmp_path / "photo.png"
    with Image.open(shared_media / "kodak" / "kodim23.png") as whole:
        whole.crop((224, 96, 544, 416)).save(photo)
    done = tvae("roundtrip", photo, "-o", tmp_path / "out", "--json", "--device", "cpu")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    (item,) = [e for e in events if e["type"] == "item_done"]
    error = np.mean((_pixels(tmp_path / "out" / "photo.png").astype(float) - _pixels(photo)) ** 2)
    assert item["quality"]["psnr"] == pytest.approx(10 * np.log10(255**2 / error), abs=0.01)
    assert item["quality"]["psnr"] > 30
