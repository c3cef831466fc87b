"""Latents from one form into another: the same values, in the space that was asked for, or one line that says why."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from clips import write_clip
from diffusers import AutoencoderKL
from foreign_files import WRITERS, latents_of, saved_model
from PIL import Image
from program import invoke
from safetensors.torch import load_file
from slow_but import slow_but
from tiny_vaes import TINY

from tvae.pipeline import decode, encode, load_latents, save_latents
from tvae.pipeline.errors import InputError, UsageError


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return saved_model(tmp_path_factory.mktemp("vae"))


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def ours(model: Any) -> Path:
    """Latents of an image of 24x20 pixels, in the type that the VAE computes in."""
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 24, 3), dtype=np.uint8)).save("a.png")
    (path,) = encode("a.png", "lat", vae=model.folder, dtype="float32")
    return path


def call(*words: object) -> tuple[int, str]:
    done = invoke(["convert", *map(str, words)])
    return done.exit_code, done.stderr


def values(path: str) -> torch.Tensor:
    """As the libraries themselves read it."""
    if path.endswith(".latent"):
        return load_file(path)["latent_tensor"]
    if path.endswith(".npz"):
        return torch.from_numpy(np.load(path)["latents"])
    return torch.from_numpy(np.load(path)) if path.endswith(".npy") else torch.load(path, weights_only=True)["latents"]


@pytest.mark.parametrize("name", slow_but(["b.latent", "b.npz"], ["b.latent", "b.npz", "b.npy", "b.pt", "b.PTH"]))
def test_the_values_are_there_and_come_back(model: Any, ours: Path, name: str) -> None:
    assert call(ours, name) == (0, "")
    found, wanted = load_latents(ours).tensor, values(name)
    assert wanted.reshape(found.shape).equal(found)
    assert wanted.ndim == (4 if name == "b.latent" else 3)
    assert call(name, "c.safetensors", "--vae", model.folder, "--space", "raw")[0] == 0
    again = load_latents("c.safetensors")
    assert again.tensor.equal(found)
    assert again.meta.vae.weights_sha256 == load_latents(ours).meta.vae.weights_sha256


def test_latents_that_cannot_be_read_are_not_taken_for_another_programs(
    ours: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def opened(name: Any, *args: Any, **named: Any) -> int:
        if str(name) == str(ours):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(name))
        return real(name, *args, **named)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", opened)
        assert call(ours, "b.npz") == (3, f"tvae: cannot read latents '{ours}': Permission denied\n")
    assert not Path("b.npz").exists()


def test_spaces(model: Any, ours: Path) -> None:
    scale = model.config.scaling_factor
    raw = load_latents(ours).tensor
    assert call(ours, "m.safetensors", "--to-space", "model")[0] == 0
    assert torch.allclose(load_latents("m.safetensors").tensor, raw * scale, atol=1e-7)
    assert load_latents("m.safetensors").meta.space.name == "model"
    assert call("m.safetensors", "r.latent")[0] == 0  # ComfyUI keeps them raw
    assert torch.allclose(values("r.latent")[0], raw, atol=1e-6)
    assert call("m.safetensors", "m.npy")[0] == 0
    assert torch.allclose(values("m.npy"), raw * scale, atol=1e-7)


def test_a_posterior_keeps_its_variance(model: Any) -> None:
    Image.new("RGB", (24, 20), (9, 99, 200)).save("a.png")
    (path,) = encode("a.png", "lat", vae=model.folder, posterior="moments", dtype="float32")
    assert call(path, "m.safetensors", "--to-space", "model")[0] == 0
    assert call("m.safetensors", "r.safetensors", "--to-space", "raw")[0] == 0
    found, there, wanted = load_latents("r.safetensors"), load_latents("m.safetensors"), load_latents(path)
    assert found.logvar is not None
    assert wanted.logvar is not None
    assert there.logvar is not None
    assert torch.allclose(found.logvar, wanted.logvar, atol=1e-5)
    log = float(np.log(model.config.scaling_factor))
    assert torch.allclose(there.logvar, wanted.logvar + 2 * log, atol=1e-5)
    for name in ("a.latent", "a.npy"):
        code, told = call(path, name)
        assert (code, "can hold one tensor" in told) == (2, True)
        assert not Path(name).exists()
    assert call(path, "a.npz")[0] == 0
    assert {*np.load("a.npz").files} == {"mean", "logvar"}


def test_a_clip_with_its_sound(model: Any) -> None:
    write_clip(Path("c.mkv"), 20, sound=True)
    (folder,) = encode("c.mkv", "lat", vae=model.folder, dtype="float32")
    assert call(folder, "m.latents", "--to-space", "model")[0] == 0
    found, wanted = load_latents("m.latents"), load_latents(folder)
    assert torch.allclose(found.tensor, wanted.tensor * model.config.scaling_factor, atol=1e-7)
    assert found.pts == wanted.pts
    streams = sorted(path.name for path in Path("m.latents").glob("streams*"))
    assert streams == sorted(path.name for path in folder.glob("streams*"))
    assert streams
    assert invoke(["verify", "m.latents"]).stdout == "1 fine\n"
    code, told = call(folder, "c.pt")
    assert (code, "not the sound" in told) == (0, True)
    assert values("c.pt").equal(wanted.tensor)


def test_kohyas_arrays_are_found(model: Any) -> None:
    z = latents_of(model)
    crop = np.array([0.0, 1.0, 2.0, 3.0])
    np.savez("k.npz", latents_6x5=z[0].numpy(), latents_flipped_6x5=z[0].numpy() * 2, crop_ltrb_6x5=crop)
    assert call("k.npz", "k.safetensors", "--vae", model.folder, "--space", "model")[0] == 0
    assert load_latents("k.safetensors").tensor.equal(z[0])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["gone.pt", "b.npz"], "does not exist"),
        (["o.pt", "b.npz"], "pass --vae and --space"),
        (["o.pt", "b.txt", "--vae", "V", "--space", "raw"], "has to end in"),
        (["o.pt", "b.latents", "--vae", "V", "--space", "raw"], "has to end in .safetensors"),
        (["o.pt", "o.pt", "--overwrite", "--vae", "V", "--space", "raw"], "source itself"),
        (["o.pt", "there.npz", "--vae", "V", "--space", "raw"], "--overwrite replaces"),
        (["there.npz", "b.pt", "--vae", "V", "--space", "raw"], "cannot read"),
    ],
)
def test_refused_in_one_line(model: Any, words: list[str], told: str) -> None:
    WRITERS["bare.pth"](Path("o.pt"), latents_of(model))
    Path("there.npz").write_bytes(b"mine")
    code, error = call(*(str(model.folder) if word == "V" else word for word in words))
    assert code in (2, 3)
    assert told in error
    assert len(error.splitlines()) == 1
    assert Path("there.npz").read_bytes() == b"mine"
    assert not Path("b.npz").exists()


def test_wrong_channels(model: Any) -> None:
    torch.save(torch.zeros(16, 5, 7), "o.pt")
    assert "has 4 channels" in call("o.pt", "b.npz", "--vae", model.folder, "--space", "raw")[1]


def test_encode_makes_no_folder_of_a_name_with_a_suffix(model: Any) -> None:
    Image.new("RGB", (24, 20)).save("a.png")
    with pytest.raises(UsageError, match="tvae convert"):
        encode("a.png", "one.pt", vae=model.folder)
    assert not Path("one.pt").exists()


@pytest.mark.parametrize("name", ["a.safetensors", "a.latent", "a.npz", "a.npy", "a.pt"])
def test_save_latents(model: Any, name: str) -> None:
    z = latents_of(model)[0]
    assert save_latents(name, z, vae=model.folder) == Path(name)
    if name == "a.safetensors":
        found = load_latents(name)
        assert found.tensor.equal(z)
        assert (found.meta.kind, found.meta.geometry.size) == ("image", (20, 24))
        changed = replace(found, tensor=z * 2)
        save_latents("b.safetensors", changed)
        scaled = replace(found, meta=replace(found.meta, space=replace(found.meta.space, name="model")))
        save_latents("b.latent", scaled)
        assert torch.allclose(values("b.latent")[0], z / model.config.scaling_factor, rtol=1e-6)
        assert load_latents("b.safetensors").tensor.equal(z * 2)
    else:
        assert values(name).reshape(z.shape).equal(z)
    with pytest.raises(UsageError, match="exists"):
        save_latents(name, z, vae=model.folder)
    save_latents(name, z, vae=model.folder, overwrite=True)


def test_a_saved_clip_decodes(model: Any) -> None:
    z = torch.randn(4, 3, 6, 5)
    save_latents("c.latents", z, vae=model.folder, space="model", fps=12.5)
    found = load_latents("c.latents")
    assert found.tensor.equal(z)
    assert (found.meta.space.name, found.pts, str(found.meta.frame_rate)) == ("model", (0, 1, 2), "25/2")


@pytest.mark.parametrize(
    ("name", "latents", "fields", "told"),
    [
        ("a.safetensors", torch.zeros(4, 2, 2), {"vae": None}, "pass vae"),
        ("a.safetensors", torch.zeros(5, 2, 2), {}, "4 channels"),
        ("a.safetensors", torch.zeros(4, 3, 2, 2), {}, "has to end in .latents"),
        ("a.latents", torch.zeros(4, 2, 2), {}, "has to end in .safetensors"),
        ("a.bin", torch.zeros(4, 2, 2), {}, "has to end in"),
        ("a.npy", torch.zeros(2, 2), {}, "not"),
    ],
)
def test_what_cannot_be_saved(model: Any, name: str, latents: Any, fields: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        save_latents(name, latents, **{"vae": model.folder, **fields})
    assert not Path(name).exists()


def test_values_that_are_not_finite_are_not_saved(model: Any) -> None:
    for name in ("a.npy", "a.safetensors"):
        with pytest.raises(InputError, match="not finite"):
            save_latents(name, torch.full((4, 2, 2), float("nan")), vae=model.folder)
        assert not Path(name).exists()


@pytest.mark.parametrize("fps", [1e10, float("inf"), 1e-9, float("nan"), 0, -1])
def test_save_latents_of_no_frame_rate(model: Any, fps: float) -> None:
    """Nothing is written that could not be read."""
    with pytest.raises(UsageError, match="is not a frame rate"):
        save_latents("c.latents", torch.zeros(4, 2, 3, 3), vae=model.folder, fps=fps)
    assert not Path("c.latents").exists()


@pytest.mark.parametrize("fps", [0.001, 23.976, 1e6])
def test_save_latents_of_a_frame_rate(model: Any, fps: float) -> None:
    found = load_latents(save_latents("c.latents", torch.zeros(4, 2, 3, 3), vae=model.folder, fps=fps))
    assert float(found.meta.frame_rate) == pytest.approx(fps)
    with pytest.raises(UsageError, match="whole numbers of ticks"):
        save_latents("d.latents", replace(found, pts=(0.5, 1.5)))
    assert not Path("d.latents").exists()


@pytest.mark.parametrize("form", WRITERS)
def test_load_latents_of_other_programs(model: Any, form: str) -> None:
    """The same values, once it is said what they are of."""
    z, path = latents_of(model), Path(form)
    WRITERS[form](path, z)
    with pytest.raises(InputError, match="pass --vae and --space"):
        load_latents(path)
    found = load_latents(path, vae=model.folder, space="raw")
    torch.testing.assert_close(found.tensor, z[0], rtol=1e-6, atol=1e-6)
    assert found.meta.space.name == "raw"
    with pytest.raises(UsageError, match="pass --vae"):
        load_latents(path, space="raw")
    again = load_latents(save_latents("again.safetensors", found))
    assert torch.equal(again.tensor, found.tensor)


@pytest.mark.parametrize("channels", [1, 2, 4])
def test_a_vae_of_other_channels(channels: int) -> None:
    """What it makes is no picture that could be written."""
    config = {**TINY["AutoencoderKL"].config, "out_channels": channels}
    AutoencoderKL(**config).save_pretrained("other")
    save_latents("z.safetensors", torch.zeros(4, 6, 8), vae="other")
    with pytest.raises(InputError, match=f"pictures of {channels} channels"):
        decode("z.safetensors", "out")
    assert not [path for path in Path("out").rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    "words", [["encode", ""], ["encode", "a.png", "-o", ""], ["decode", ""], ["encode", "a.png", ""]]
)
def test_names_that_are_empty(words: list[str]) -> None:
    """As those of variables that are not set: they are not the folder where one is."""
    Image.new("RGB", (16, 16)).save("a.png")
    result = invoke([*words, "--device", "cpu"])
    assert result.exit_code == 2
    assert "is empty" in result.stderr
    assert [path.name for path in Path().iterdir()] == ["a.png"]
