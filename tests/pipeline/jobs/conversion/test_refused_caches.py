"""Trainers' caches that do not say enough, say what cannot be, or are not as they were: one line each."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conversions import files_below, tvae, write_photo
from PIL import Image
from safetensors.torch import load_file, save_file

from tvae.pipeline import load_latents

KOHYA = ("--size", "96x64", "--buckets", "32-128/32")


def forget(folder: str) -> None:
    """As if the trainer itself had written it."""
    shutil.rmtree(Path(folder, ".tvae-cache"))


def test_without_the_images_names_say_what_they_can(folders: Any) -> None:
    write_photo(Path("photos/a.b.png"), 192, 128)
    write_photo(Path("photos/c.png"), 192, 128)
    settings = ("--arch", "sdxl", "--vae", folders("sdxl"), *KOHYA)
    tvae("cache", "photos", "-o", "cache", "--for", "kohya", *settings)
    forget("cache")
    assert tvae("convert", "cache", "lat", "--from", "kohya", *settings)[0] == 0
    assert tvae("convert", "lat", "back", "--for", "kohya", "--arch", "sdxl", *KOHYA)[0] == 0
    assert files_below(Path("back")) == files_below(Path("cache"))
    of_toolkit = ("--for", "ai-toolkit", "--arch", "sdxl", "--size", "96x96")
    code, _, told = tvae("convert", "lat", "toolkit", *of_toolkit)
    assert (code, len(told), "wants the whole name of its picture, not 'a.b.npz'" in told[0]) == (3, 2, True)
    for trainer in ("ai-toolkit", "simpletuner"):
        words = ("--for", trainer, "--arch", "sdxl", "--size", "64x64", "--vae", folders("sdxl"))
        assert tvae("cache", "photos", "-o", trainer, *words)[0] == 0
        forget(trainer)
        words = ("--from", trainer, *words[2:])
        code, _, told = tvae("convert", trainer, "none", *words)
        assert (code, len(told)) == (3, 2)
        assert all("with --source" in line for line in told)
    assert files_below(Path("none")) == {}


def test_what_is_not_as_it_was_is_refused(folders: Any) -> None:
    """The image, the file, the VAE; each fails alone."""
    for number in range(4):
        write_photo(Path(f"photos/{number}.png"), seed=number)
    exif = Image.open("photos/0.png").getexif()
    exif[0x0112] = 6
    write_photo(Path("photos/4.png"), exif=exif)
    settings = ("--arch", "sdxl", "--vae", folders("sdxl"), *KOHYA)
    words = ("convert", "cache", "lat", "--from", "kohya", "--source", "photos", *settings)
    tvae("cache", "photos", "-o", "cache", "--for", "kohya", *settings)
    write_photo(Path("photos/1.png"), seed=9)
    write_photo(Path("photos/2.png"), 64, 64)
    data = bytearray(Path("cache/3_0096x0064_sdxl.npz").read_bytes())
    data[-300] ^= 1
    Path("cache/3_0096x0064_sdxl.npz").write_bytes(data)
    code, _, told = tvae(*words)
    assert (code, [*files_below(Path("lat"))]) == (3, ["0.png.safetensors", "4.png.safetensors"])
    for part in ("1.png' has changed", "2.png' is 64x64, and its cache is of 96x64", "is damaged: its content"):
        assert sum(part in line for line in told) == 1
    other = folders("sdxl").parent / "other"
    shutil.copytree(folders("sdxl"), other, dirs_exist_ok=True)
    (weights,) = other.glob("*.safetensors")
    changed = {name: value + 1 for name, value in load_file(weights).items()}
    save_file(changed, weights)
    told = tvae(*(other if word == folders("sdxl") else word for word in words), "--overwrite")[2]
    assert sum("it was made by another VAE" in line for line in told) >= 2
    before = load_latents("lat/0.png.safetensors").meta.vae
    of_other = [other if word == folders("sdxl") else word for word in words]
    assert not any("another VAE" in line for line in tvae(*of_other, "--allow-other-vae", "--overwrite")[2])
    after = load_latents("lat/0.png.safetensors").meta.vae
    assert (after.id, after.weights_sha256 != before.weights_sha256) == (str(other), True)
    settings = ("--for", "ai-toolkit", "--arch", "sdxl", "--size", "96x96", "--no-progress")
    told = tvae("convert", "lat", "toolkit", *settings)[2]
    assert sum("is to be turned as its file says, which ai-toolkit does and kohya does not" in one for one in told) == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--from", "kohya"), "does not say which VAE it is of: pass --vae"),
        (("--from", "kohya", "--vae", "V", "--arch", "flux"), "is not kohya's for flux"),
        (("--from", "x", "--vae", "V"), "--from x is no trainer that tvae knows caches of"),
        (("--from", "webdataset", "--vae", "V"), "shards of webdataset are read by their loaders alone"),
        (("--from", "kohya", "--vae", "V", "--arch", "sd"), "is not kohya's for sd: that has scale 0.18215"),
        (("--from", "musubi", "--vae", "V"), "trains nothing on latents of the VAE"),
        (("--from", "kohya", "--vae", "V", "--arch", "sdxl", "--source", "gone"), "gone, does not exist"),
        (("--from", "ai-toolkit", "--vae", "V", "--arch", "sdxl"), "no files of ai-toolkit for sdxl in cache"),
        (("--from", "kohya", "--vae", "V", "--space", "raw"), "--space is of single files"),
        (("--from", "kohya", "--vae", "V", "--posterior", "mean"), "--posterior is of --for"),
        (("--for", "kohya", "--source", "."), "--source is of caches that are read: pass --from"),
    ],
)
def test_refused_before_any_work(folders: Any, words: tuple[str, ...], told: str) -> None:
    Path("cache").mkdir()
    np.savez("cache/a_0096x0064_sdxl.npz", latents=np.zeros((4, 8, 12), np.float32))
    code, _, lines = tvae("convert", "cache", "out", *(folders("sdxl") if word == "V" else word for word in words))
    assert (code, len(lines)) == (2, 1)
    assert told in lines[0]
    assert not Path("out").exists()


def test_into_itself(folders: Any) -> None:
    Path("cache").mkdir()
    np.savez("cache/a_0096x0064_sdxl.npz", latents=np.zeros((4, 8, 12), np.float32))
    words = ("convert", "cache", "cache", "--from", "kohya", "--from-arch", "sdxl", "--for", "kohya", "--vae")
    code, _, lines = tvae(*words, folders("sdxl"), "--arch", "sdxl", *KOHYA)
    assert (code, "is the cache itself" in lines[0]) == (2, True)


@pytest.mark.parametrize(
    ("arrays", "told"),
    [
        ({"latents": (5, 8, 12)}, "of 4 channels were expected, as floating-point numbers, not float32 [5, 1, 8, 12]"),
        ({"other": (4, 8, 12)}, "holds no latents as kohya keeps them"),
        ({"latents_8x12": (4, 8, 12), "latents_8x8": (4, 8, 8)}, "its cache holds 64x64, 96x64; say with --size"),
    ],
)
def test_files_that_hold_something_else(folders: Any, arrays: dict[str, tuple[int, ...]], told: str) -> None:
    Path("cache").mkdir()
    np.savez("cache/a_0096x0064_sdxl.npz", **{name: np.zeros(shape, np.float32) for name, shape in arrays.items()})
    np.savez("cache/b_0096x0064_sdxl.npz", latents=np.zeros((4, 8, 12), np.float32))
    words = ("convert", "cache", "out", "--from", "kohya", "--arch", "sdxl", "--vae", folders("sdxl"))
    code, _, lines = tvae(*words)
    assert (code, len(lines), [*files_below(Path("out"))]) == (3, 1, ["b.npz.safetensors"])
    assert told in lines[0]
    if "say with --size" in told:
        assert tvae(*words, *KOHYA)[0] == 0
        assert load_latents("out/a.npz.safetensors").tensor.shape == (4, 8, 12)


@pytest.mark.parametrize("name", ["../../a.png", "/a.png", "x/a.png", ".."])
def test_names_that_lead_elsewhere(folders: Any, name: str) -> None:
    """What a file says of its source is no path to follow."""
    texts = {"filename": name, "latent_space_version": "sdxl", "format": "pt"}
    texts |= {"scale_to_width": "64", "scale_to_height": "64", "crop_x": "0", "crop_y": "0"}
    texts |= {"crop_width": "64", "crop_height": "64"}
    for place in ("deep/cache/_latent_cache", "deep/cache/s/_latent_cache"):
        Path(place).mkdir(parents=True)
        save_file({"latent": torch.zeros(4, 8, 8)}, f"{place}/a_x.safetensors", texts)
    write_photo(Path("a.png"), 64, 64)
    before = files_below(Path())
    words = ("--from", "ai-toolkit", "--arch", "sdxl", "--vae", folders("sdxl"), "--recursive", "--source", "deep")
    code, _, told = tvae("convert", "deep/cache", "deep/out", *words)
    assert (code, len(told)) == (3, 2)
    assert all("and no file can be" in line for line in told)
    assert files_below(Path()) == before


def test_an_older_comfyui_and_several_pictures(folders: Any) -> None:
    """Without its marker a file's values are scaled, by a number that the file does not say."""
    Path("cache").mkdir()
    value, marker = torch.zeros(1, 4, 8, 8), {"latent_format_version_0": torch.tensor([])}
    save_file({"latent_tensor": value}, "cache/old.latent")
    save_file({"latent_tensor": torch.zeros(2, 4, 8, 8), **marker}, "cache/two.latent")
    save_file({"latent_tensor": value, **marker}, "cache/fine.latent")
    for name in ("old", "two", "fine"):
        write_photo(Path(f"photos/{name}.png"), 64, 64)
    words = ("--from", "comfy", "--arch", "kl", "--vae", folders("sdxl"), "--size", "64x64", "--source", "photos")
    code, _, told = tvae("convert", "cache", "lat", *words)
    assert (code, len(told)) == (3, 2)
    assert any("old.latent" in line and "an older ComfyUI scaled its values" in line for line in told)
    assert any("two.latent" in line and "it holds 2 pictures; one can be converted" in line for line in told)
    assert [*files_below(Path("lat"))] == ["fine.png.safetensors"]
