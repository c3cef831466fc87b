"""tvae's latents into trainers' caches: the same bytes as ``tvae cache`` writes from the pictures, or one line each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from clips import write_clip
from conversions import files_below, tvae, write_photo
from PIL import Image
from safetensors.torch import save_file
from slow_but import slow_but

from tvae.pipeline import load_latents, save_latents

KOHYA = ("--for", "kohya", "--arch", "sdxl", "--size", "96x64", "--buckets", "32-128/32")
CASES = {
    "kohya sdxl": ("sdxl", (96, 64), KOHYA),
    "kohya flux": ("flux", (96, 64), ("--for", "kohya", "--arch", "flux", "--size", "96x64", "--buckets", "32-128/32")),
    "kohya no-upscale": ("sdxl", (64, 128), ("--for", "kohya", "--arch", "sdxl", "--no-upscale")),
    "musubi zi": ("flux", (96, 64), ("--for", "musubi", "--size", "96x64")),
    "musubi f2d": ("flux2", (96, 64), ("--for", "musubi", "--arch", "f2d", "--size", "96x64")),
    "musubi wan": ("wan", (96, 64), ("--for", "musubi", "--arch", "wan", "--size", "96x64")),
    "ai-toolkit sdxl": ("sdxl", (64, 64), ("--for", "ai-toolkit", "--arch", "sdxl", "--size", "64x64")),
    "ai-toolkit wan21": ("wan", (64, 64), ("--for", "ai-toolkit", "--arch", "wan21", "--size", "64x64")),
    "simpletuner sdxl": ("sdxl", (64, 64), ("--for", "simpletuner", "--arch", "sdxl", "--size", "64x64")),
    "comfy kl": ("sdxl", (104, 64), ("--for", "comfy")),
}


@pytest.mark.parametrize("case", slow_but(["kohya sdxl", "musubi zi"], CASES))
def test_the_bytes_of_a_cache_made_from_the_pictures(folders: Any, case: str) -> None:
    """Where no bucket changes their size. Samples are drawn from the same noise."""
    vae, (width, height), trainer = CASES[case]
    for number, name in enumerate(("a.b.png", "c.png", "sub/d.png")):
        write_photo(Path("photos", name), width, height, number)
    common = ("--vae", folders(vae), "--recursive", "--dtype", "float32", "--batch", 1)
    assert tvae("cache", "photos", "-o", "wanted", *common, *trainer, "--seed", 3)[0] == 0
    assert tvae("encode", "photos", "-o", "lat", *common, "--posterior", "moments")[0] == 0
    code, out, told = tvae("convert", "lat", "cache", *trainer, "--recursive", "--seed", 3)
    assert (code, told, len(out.splitlines())) == (0, [], 3)
    assert files_below(Path("cache")) == files_below(Path("wanted"))
    assert len(files_below(Path("cache"))) == 3
    assert tvae("verify", "cache", "--source", "photos") == (0, "3 fine\n", [])


@pytest.mark.long
@pytest.mark.parametrize("arch", slow_but(["wan"], ["wan", "hv"]))
def test_a_clip_is_one_piece(folders: Any, arch: str) -> None:
    Path("film").mkdir()
    write_clip(Path("film/c.mkv"), 9, sound=True, side=64)
    vae = folders("wan" if arch == "wan" else "hunyuan")
    trainer = ("--for", "musubi", "--arch", arch, "--size", "64x64")
    common = ("--vae", vae, "--dtype", "float32")
    assert tvae("cache", "film", "-o", "wanted", *common, *trainer)[0] == 0
    assert tvae("encode", "film", "-o", "lat", *common, "--posterior", "moments")[0] == 0
    assert tvae("convert", "lat", "cache", *trainer)[0] == 0
    assert files_below(Path("cache")) == files_below(Path("wanted"))
    assert [*files_below(Path("cache"))] == [f"c_00000-009_0064x0064_{arch}.safetensors"]


def test_means_stay_means_and_that_is_said_once(folders: Any) -> None:
    for number in range(2):
        write_photo(Path(f"photos/{number}.png"), seed=number)
    tvae("encode", "photos", "-o", "lat", "--vae", folders("sdxl"), "--dtype", "float32")
    code, _, told = tvae("convert", "lat", "cache", *KOHYA)
    assert (code, len(told)) == (0, 1)
    assert "kohya stores a sample for sdxl; what is a mean stays one" in told[0]
    with np.load("cache/0_0096x0064_sdxl.npz") as found:
        assert torch.from_numpy(found["latents"]).equal(load_latents("lat/0.png.safetensors").tensor)
        assert found["original_size"].tolist() == [96, 64]
        assert found["crop_ltrb"].tolist() == [0, 0, 96, 64]
    code, _, told = tvae("convert", "lat", "again", *KOHYA, "--posterior", "sample")
    assert (code, "a sample was asked for and these latents are a mean" in told[0]) == (3, True)
    assert files_below(Path("again")) == {}


def test_what_is_done_is_skipped_and_what_changed_is_not(folders: Any) -> None:
    for number in range(2):
        write_photo(Path(f"photos/{number}.png"), seed=number)
    encode = ("encode", "photos", "-o", "lat", "--vae", folders("sdxl"), "--posterior", "moments")
    tvae(*encode)
    tvae("convert", "lat", "cache", *KOHYA)
    before = files_below(Path("cache"))
    write_photo(Path("photos/1.png"), seed=7)
    tvae(*encode)
    out = tvae("convert", "lat", "cache", *KOHYA, "--json")[1]
    events = [json.loads(line) for line in out.splitlines()]
    assert [one["type"] for one in events] == ["run_started", "item_skipped", "item_done", "run_done"]
    assert (events[0]["operation"], events[-1]["done"], events[-1]["skipped"]) == ("convert", 1, 1)
    after = files_below(Path("cache"))
    assert [name for name in before if before[name] != after[name]] == ["1_0096x0064_sdxl.npz"]
    Path("cache/0_0096x0064_sdxl.npz").unlink()
    assert "1_0096x0064_sdxl.npz  skipped" in tvae("convert", "lat", "cache", *KOHYA)[1]
    assert files_below(Path("cache")) == after


def test_a_file_of_the_trainer_s_own_is_not_replaced(folders: Any) -> None:
    write_photo(Path("photos/0.png"))
    tvae("encode", "photos", "-o", "lat", "--vae", folders("sdxl"), "--posterior", "moments")
    mine = Path("cache/0_0096x0064_sdxl.npz")
    mine.parent.mkdir()
    mine.write_bytes(b"kohya's own")
    code, _, told = tvae("convert", "lat", "cache", *KOHYA)
    assert (code, "tvae did not write it" in told[0], mine.read_bytes()) == (3, True, b"kohya's own")
    assert tvae("convert", "lat", "cache", *KOHYA, "--overwrite")[0] == 0
    assert mine.read_bytes() != b"kohya's own"


BUCKETS = ("--buckets", "32-128/32")


@pytest.mark.parametrize(
    ("encoded", "trainer", "told"),
    [
        (("--size", "96x64"), ("--size", "96x64", *BUCKETS), None),
        (("--size", "96x64"), ("--size", "64x64", "--buckets", "off"), "kohya wants 64x64 at 16,0 of 96x64 of"),
        (
            (),
            ("--size", "96x64", *BUCKETS),
            "wants 96x64 of this picture of 192x128, the latents are of 192x128;",
        ),
        (("--size", "100x70", "--fit", "stretch"), ("--size", "96x64", *BUCKETS), "the latents are of 100x70, padded"),
        (("--size", "64x64", "--fit", "cover"), ("--size", "64x64", "--buckets", "off"), None),
    ],
)
def test_a_picture_that_was_cut_otherwise(
    folders: Any, encoded: tuple[str, ...], trainer: tuple[str, ...], told: str | None
) -> None:
    write_photo(Path("photos/0.png"), 192, 128)
    tvae("encode", "photos", "-o", "lat", "--vae", folders("sdxl"), "--posterior", "moments", *encoded)
    code, _, lines = tvae("convert", "lat", "cache", "--for", "kohya", "--arch", "sdxl", *trainer)
    assert (code, len(lines), len(files_below(Path("cache")))) == ((0, 0, 1) if told is None else (3, 1, 0))
    assert told is None or told in lines[0]


def test_one_bad_item_fails_alone(folders: Any) -> None:
    for number in range(3):
        write_photo(Path(f"photos/{number}.png"), seed=number)
    turned = Image.open("photos/0.png").getexif()
    turned[0x0112] = 6
    write_photo(Path("photos/4.png"), 64, 96, exif=turned)
    tvae("encode", "photos", "-o", "lat", "--vae", folders("sdxl"), "--posterior", "moments")
    tvae("encode", "photos/1.png", "-o", "lat", "--vae", folders("flux"))
    file = Path("lat/2.png.safetensors")
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(data)
    Path("lat/3.safetensors").write_bytes(b"no latents")
    save_file({"latent": torch.zeros(4, 8, 12)}, "lat/5.safetensors")
    code, out, told = tvae("convert", "lat", "cache", *KOHYA)
    assert (code, out.splitlines()) == (3, ["lat/0.png.safetensors -> cache/0_0096x0064_sdxl.npz"])
    kinds = ("is not kohya's for sdxl: that has 4 channels", "is damaged", "3.safetensors", "was turned as its file")
    kinds += ("'lat/5.safetensors' is not latents of tvae; a trainer's cache is named with --from",)
    assert len(told) == len(kinds)
    assert all(any(kind in line for line in told) for kind in kinds)


@pytest.mark.long
def test_frames_that_fill_a_clip_up_are_refused(folders: Any) -> None:
    write_clip(Path("c.mkv"), 7, sound=False, side=64)
    tvae("encode", "c.mkv", "-o", "lat", "--vae", folders("wan"))
    options = ("--for", "musubi", "--arch", "wan", "--size", "64x64")
    code, _, told = tvae("convert", "lat", "cache", *options)
    assert (code, "was repeated 2 times; encode it with --align crop" in told[0]) == (3, True)
    tvae("encode", "c.mkv", "-o", "lat", "--vae", folders("wan"), "--align", "crop")
    assert tvae("convert", "lat", "cache", *options)[0] == 0
    assert [*files_below(Path("cache"))] == ["c_00000-005_0064x0064_wan.safetensors"]
    code, _, told = tvae("convert", "lat", "cache", "--for", "musubi", "--arch", "qi", "--size", "64x64")
    assert (code, "caches images alone for qi" in told[0]) == (3, True)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("gone", "cache", "--for", "kohya"), "gone does not exist"),
        (("lat", "cache", "--for", "webdataset"), "shards of webdataset are filled by tvae cache"),
        (("lat", "cache", "--for", "kohya", "--arch", "pony"), "no architecture 'pony'"),
        (("lat", "cache", "--for", "kohya", "--space", "raw"), "--space is of single files"),
        (("lat", "c.npz", "--arch", "sdxl"), "--arch is of caches: pass --for"),
        (("lat", "cache", "--for", "simpletuner", "--arch", "sdxl", "--no-upscale"), "simpletuner enlarges all small"),
        (("lat", "cache", "--for", "kohya", "--arch", "flux"), "is not kohya's for flux: that has 16 channels"),
    ],
)
def test_refused_before_any_work(folders: Any, words: tuple[str, ...], told: str) -> None:
    for name in ("a", "b"):
        save_latents(f"lat/{name}.safetensors", torch.zeros(4, 8, 12), vae=folders("sdxl"))
    code, _, lines = tvae("convert", *words)
    assert (code, len(lines)) == (2, 1)
    assert told in lines[0]
    assert not Path("cache").exists()


def test_alpha_is_left_out_and_told_once(folders: Any) -> None:
    for number in range(2):
        write_photo(Path(f"photos/{number}.png"), seed=number)
    common = ("--vae", folders("sdxl"), "--dtype", "float32", "--batch", 1)
    assert tvae("encode", "photos", "-o", "plain", *common, "--posterior", "moments")[0] == 0
    assert tvae("convert", "plain", "wanted", *KOHYA)[0] == 0
    for number in range(2):
        with Image.open(f"photos/{number}.png") as image:
            image.putalpha(Image.new("L", image.size, 9))
            image.save(f"photos/{number}.png")
    assert tvae("encode", "photos", "-o", "lat", *common, "--posterior", "moments")[0] == 0
    code, _, told = tvae("convert", "lat", "cache", *KOHYA)
    assert (code, len(told)) == (0, 1)
    assert "the alpha of images is left out" in told[0]
    assert files_below(Path("cache")) == files_below(Path("wanted"))
