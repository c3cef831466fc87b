"""Trainers' caches into tvae's own latents and back, and into those of other trainers: the same values."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from clips import write_clip
from conversions import BESIDE, files_below, tvae, write_photo
from PIL import Image
from safetensors.torch import load_file, save_file
from slow_but import slow_but
from typer.testing import CliRunner

from tvae.cli.app import app
from tvae.pipeline import load_latents

KOHYA = ("--size", "96x64", "--buckets", "32-128/32")
CASES = {
    "kohya sdxl": ("sdxl", (192, 128), KOHYA),
    "kohya flux": ("flux", (192, 128), KOHYA),
    "musubi zi": ("flux", (192, 128), ("--size", "96x64")),
    "musubi f2d": ("flux2", (192, 128), ("--size", "96x64")),
    "musubi wan": ("wan", (192, 128), ("--size", "96x64")),
    "ai-toolkit sdxl": ("sdxl", (192, 128), ("--size", "64x64")),
    "ai-toolkit wan21": ("wan", (192, 128), ("--size", "64x64")),
    "simpletuner sdxl": ("sdxl", (128, 128), ("--size", "64x64")),
    "simpletuner wan": ("wan", (128, 128), ("--size", "64x64")),
    "comfy kl": ("sdxl", (107, 64), ()),
}


def forget(folder: str) -> None:
    """As if the trainer itself had written it."""
    shutil.rmtree(Path(folder, ".tvae-cache"))


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("case", slow_but(["kohya sdxl", "ai-toolkit sdxl"], CASES))
def test_into_tvae_s_and_back(folders: Any, case: str, known: bool) -> None:
    vae, (width, height), settings = CASES[case]
    trainer, arch = case.split()
    for number, name in enumerate(("a.b.png", "sub/d.png")):
        write_photo(Path("photos", name), width, height, number)
    common = ("--arch", arch, *settings, "--recursive")
    of_vae = ("--vae", folders(vae))
    assert tvae("cache", "photos", "-o", "cache", "--for", trainer, *of_vae, *common)[0] == 0
    if not known:
        forget("cache")
    code, _, told = tvae("convert", "cache", "lat", "--from", trainer, *of_vae, *common, "--source", "photos")
    assert (code, told) == (0, [])
    assert [*files_below(Path("lat"))] == ["a.b.png.safetensors", "sub/d.png.safetensors"]
    found = load_latents("lat/sub/d.png.safetensors")
    geometry = found.meta.geometry
    assert (geometry.source_width, geometry.source_height, found.meta.source.name) == (width, height, "d.png")
    assert tvae("verify", "lat", "lat/sub", "--source", "photos")[0] == 0
    assert tvae("convert", "lat", "back", "--for", trainer, *common)[0] == 0
    assert files_below(Path("back")) == files_below(Path("cache"))
    assert tvae("verify", "back", "--source", "photos") == (0, "2 fine\n", [])
    again = tvae("convert", "cache", "lat", "--from", trainer, *of_vae, *common, "--source", "photos")[1]
    assert again.count("skipped: done already") == 2


@pytest.mark.parametrize("known", [True, False])
def test_pieces_of_a_video(folders: Any, known: bool) -> None:
    Path("film").mkdir()
    write_clip(Path("film/c.mkv"), 14, sound=False, side=64)
    settings = ("--arch", "wan", "--size", "64x64")
    pieces = ("--frames", 5, "--stride", 4, "--start", 1, "--target-fps", 16)
    of_vae = ("--vae", folders("wan"))
    tvae("cache", "film", "-o", "cache", "--for", "musubi", *settings, *pieces, *of_vae)
    assert len(files_below(Path("cache"))) == 1
    tvae("cache", "film", "-o", "cache", "--for", "musubi", *settings, *pieces[:-2], *of_vae)
    names = [f"c_{start:05d}-005_0064x0064_wan.safetensors" for start in (1, 5, 9)]
    assert [*files_below(Path("cache"))] == names
    if not known:
        forget("cache")
    assert tvae("convert", "cache", "lat", "--from", "musubi", *settings, *of_vae, "--source", "film")[0] == 0
    places = sorted(path.name for path in Path("lat").iterdir())
    assert places == [f"c_{start:05d}-005.mkv.latents" for start in (1, 5, 9)]
    found = load_latents("lat/c_00005-005.mkv.latents")
    assert (found.meta.frame_rate, len(found.pts)) == (25, 5)
    assert found.tensor.equal(load_file(f"cache/{names[1]}")["latents_2x8x8_bfloat16"])
    assert tvae("convert", "lat", "back", "--for", "musubi", *settings)[0] == 0
    assert files_below(Path("back")) == files_below(Path("cache"))
    code, _, told = tvae("convert", "lat", "one", "--for", "comfy", "--arch", "wan")
    assert (code, "cannot tell 3 pieces apart" in told[0]) == (3, True)


def values(path: Path) -> torch.Tensor:
    """As the libraries read them."""
    if path.suffix == ".npz":
        with np.load(path) as found:
            return next(torch.from_numpy(found[name]) for name in found.files if name.startswith("latents"))
    if path.suffix == ".pt":
        return torch.load(path, weights_only=True)
    return next(value for name, value in load_file(path).items() if value.numel())


@pytest.mark.parametrize(
    ("source", "target", "vae", "way"),
    slow_but(
        [("kohya sdxl", "ai-toolkit sdxl", "sdxl", "model"), ("musubi zi", "kohya flux", "flux", "model")],
        [
            ("kohya sdxl", "ai-toolkit sdxl", "sdxl", "model"),
            ("kohya sdxl", "simpletuner sdxl", "sdxl", "model"),
            ("ai-toolkit sdxl", "kohya sdxl", "sdxl", "raw"),
            ("simpletuner sdxl", "kohya sdxl", "sdxl", "raw"),
            ("musubi zi", "kohya flux", "flux", "model"),
            ("kohya flux", "ai-toolkit flux", "flux", "same"),
            ("kohya flux", "kohya lumina", "flux", "same"),
            ("musubi qi", "ai-toolkit wan21", "wan", "same"),
            ("ai-toolkit flux2", "musubi f2d", "flux2", "same"),
            ("kohya sdxl", "comfy kl", "sdxl", "same"),
        ],
    ),
)
def test_from_one_trainer_into_another(folders: Any, source: str, target: str, vae: str, way: str) -> None:
    write_photo(Path("photos/a.png"), 128, 128)
    (name, arch), (other, other_arch) = source.split(), target.split()
    settings = ("--size", "128x128", "--vae", folders(vae))
    tvae("cache", "photos", "-o", "cache", "--for", name, "--arch", arch, *settings)
    words = ("--from", name, "--from-arch", arch, "--for", other, "--arch", other_arch, "--source", "photos")
    as_it_is = ("--posterior", "mean" if source in ("musubi zi", "musubi qi", "ai-toolkit flux2") else "sample")
    code, _, told = tvae("convert", "cache", "out", *words, *settings, *as_it_is)
    assert (code, told) == (0, [])
    tvae("cache", "photos", "-o", "wanted", "--for", other, "--arch", other_arch, *settings)
    assert [*files_below(Path("out"))] == [*files_below(Path("wanted"))]
    ((found,), (before,)) = (
        [values(path) for path in sorted(Path(folder).rglob("*")) if path.is_file() and ".tvae" not in str(path)]
        for folder in ("out", "cache")
    )
    scale, shift = {"sdxl": (0.13025, 0.0), "flux": (0.3611, 0.1159)}.get(vae, (1.0, 0.0))
    wide = before.double().reshape(found.shape)
    wanted = {"same": wide, "model": (wide - shift) * scale, "raw": wide / scale + shift}[way]
    tolerance = 4e-3 if torch.bfloat16 in (before.dtype, found.dtype) else 1e-6
    assert float((found.double() - wanted).norm() / wanted.norm()) < tolerance
    assert way != "same" or found.equal(before.reshape(found.shape).to(found.dtype))


def test_mirrored_images_are_taken_along_where_both_keep_them(folders: Any) -> None:
    write_photo(Path("photos/a.png"), 128, 128)
    settings = ("--arch", "sdxl", "--size", "128x128", "--vae", folders("sdxl"))
    tvae("cache", "photos", "-o", "cache", "--for", "ai-toolkit", "--flip", *settings)
    forget("cache")
    words = ("--from", "ai-toolkit", "--source", "photos", *settings)
    assert tvae("convert", "cache", "out", "--for", "kohya", *words)[0] == 0
    with np.load("out/a_0128x0128_sdxl.npz") as found:
        plain, mirrored = (torch.from_numpy(found[name]) for name in ("latents", "latents_flipped"))
    files = [load_file(path) for path in sorted(Path("cache/_latent_cache").iterdir())]
    for one in (plain, mirrored):
        assert any(torch.allclose(file["latent"], one * 0.13025, rtol=1e-6, atol=1e-7) for file in files)
    assert not plain.equal(mirrored)
    code, _, told = tvae("convert", "cache", "lat", *words)
    assert (code, "mirrored images; those of the cache are left out" in told[0]) == (0, True)
    back = ("--from", "kohya", "--source", "photos", *settings)
    assert tvae("convert", "out", "again", "--for", "ai-toolkit", *back)[0] == 0
    assert [*files_below(Path("again"))] == [*files_below(Path("cache"))]
    code, _, told = tvae("convert", "out", "st", "--for", "simpletuner", *back)
    assert (code, "simpletuner keeps no mirrored images" in told[0]) == (0, True)


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
    settings = ("--for", "ai-toolkit", "--arch", "sdxl", "--size", "96x96", "--no-progress")
    told = tvae("convert", "lat", "toolkit", *settings)[2]
    assert sum("is to be turned as its file says, which ai-toolkit does and kohya does not" in one for one in told) == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--from", "kohya"), "does not say which VAE it is of: pass --vae"),
        (("--from", "kohya", "--vae", "V", "--arch", "flux"), "is not kohya's for flux"),
        (("--from", "webdataset", "--vae", "V"), "shards of webdataset are read by their loaders alone"),
        (("--from", "kohya", "--vae", "V", "--arch", "sd"), "is of another model than sd"),
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
        ({"latents": (5, 8, 12)}, "latents of 4 channels were expected, not of 5"),
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


def test_what_the_trainer_wants_is_told(folders: Any) -> None:
    write_photo(Path("photos/a.png"))
    settings = ("--arch", "sdxl", *KOHYA)
    words = ("--from", "kohya", "--vae", str(folders("sdxl")))
    tvae("cache", "photos", "-o", "photos", "--for", "kohya", *settings, *words[2:])
    told = []
    for call in (
        ["photos", "lat", *words, *settings],
        ["lat", "out", "--for", "kohya", *settings],
        ["out", "photos", "--for", "ai-toolkit", *words, "--arch", "sdxl", "--size", "96x96", "--source", "photos"],
    ):
        told.append(CliRunner().invoke(app, ["convert", *call]).stderr)
    assert [BESIDE in one for one in told] == [False, True, False]
    assert ["one resolution of each image" in one for one in told] == [False, True, False]
    assert files_below(Path("photos/_latent_cache"))
