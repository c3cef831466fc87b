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
from program import invoke
from safetensors.torch import load_file
from slow_but import slow_but

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
    "simpletuner anima": ("wan", (128, 128), ("--size", "64x64")),
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


@pytest.mark.long
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
        told.append(invoke(["convert", *call]).stderr)
    assert [BESIDE in one for one in told] == [False, True, False]
    assert ["one resolution of each image" in one for one in told] == [False, True, False]
    assert files_below(Path("photos/_latent_cache"))


@pytest.mark.parametrize("arch", ["sdxl", "flux"])
def test_alpha_masks_are_left_out_and_told(arch: str, folders: Any) -> None:
    for n in range(2):
        photo = Image.open(write_photo(Path("photos", f"{n}.png"), 128, 128, n)).convert("RGBA")
        photo.putalpha(100 + n)
        photo.save(f"photos/{n}.png")
    settings = ("--arch", arch, "--size", "128x128", "--vae", folders(arch))
    assert tvae("cache", "photos", "-o", "cache", "--for", "kohya", "--alpha-mask", *settings)[0] == 0
    before = files_below(Path("cache"))
    end = "" if arch == "sdxl" else "_16x16"
    with np.load(f"cache/0_0128x0128_{arch}.npz") as found:
        plain = found[f"latents{end}"]
        assert f"alpha_mask{end}" in found.files
    words = ("--from", "kohya", "--source", "photos", *settings)
    for target in ("kohya", *(["simpletuner"] if arch == "sdxl" else []), None):
        into = () if target is None else ("--for", target, "--from-arch", arch)
        code, _, told = tvae("convert", "cache", f"out {target}", *into, *words)
        assert (code, len(told), "alpha masks are left out" in told[0]) == (0, 1, True)
    with np.load(f"out kohya/0_0128x0128_{arch}.npz") as found:
        assert f"alpha_mask{end}" not in found.files
        assert (found[f"latents{end}"] == plain).all()
    forget("cache")
    assert tvae("convert", "cache", "out again", *words)[0] == 0
    assert files_below(Path("cache")) == before
