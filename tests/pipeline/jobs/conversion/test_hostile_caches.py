"""Files in a trainer's cache that nobody wrote for it: each fails alone, with a line about itself."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from clips import write_clip
from conversions import files_below, tvae, write_photo
from safetensors.torch import save_file

from tvae.pipeline import load_latents
from tvae.pipeline.caches.record import read_record, write_record

GOOD = np.random.default_rng(0).standard_normal((4, 8, 12)).astype(np.float32)
KOHYA = ("--arch", "sdxl", "--size", "96x64", "--buckets", "32-128/32", "--no-progress")
TOOLKIT = {
    **{"filename": "a.png", "latent_space_version": "sdxl", "scale_to_width": "96", "scale_to_height": "64"},
    **{"crop_x": "0", "crop_y": "0", "crop_width": "96", "crop_height": "64"},
}


@pytest.mark.parametrize(
    ("name", "arrays", "told"),
    [
        ("a_0096x0064", {"latents": np.zeros((4, 0, 0), np.float32)}, "not float32 [4, 1, 0, 0]"),
        ("a_0096x0064", {"latents": np.zeros((4, 8, 12), np.int32)}, "not int32 [4, 1, 8, 12]"),
        ("a_0096x0064", {"latents": np.zeros((4, 3), np.float32)}, "not float32 [4, 3]"),
        ("a_0096x0064", {"latents": GOOD, "latents_flipped": GOOD[:, :4]}, "mirrored image have another shape"),
        ("a_0096x0064", {"latents": GOOD, "latents_flipped": np.zeros(4, np.float32)}, "not float32 [4]"),
        ("a_0000x0000", {"latents": GOOD}, "is of no size that there is"),
        (f"a_{'9' * 200}x0064", {"latents": GOOD}, "is of no size that there is"),
        ("a_0001x2147483647", {"latents": GOOD}, "is of no size that there is"),
    ],
)
def test_a_file_that_cannot_be_fails_alone(folders: Any, name: str, arrays: dict[str, Any], told: str) -> None:
    Path("cache").mkdir()
    np.savez(f"cache/{name}_sdxl.npz", **arrays)
    np.savez("cache/good_0096x0064_sdxl.npz", latents=GOOD)
    code, _, lines = tvae("convert", "cache", "lat", "--from", "kohya", "--vae", folders("sdxl"), *KOHYA)
    assert (code, len(lines)) == (3, 1), lines
    assert told in lines[0]
    assert "internal error" not in lines[0]
    assert [*files_below(Path("lat"))] == ["good.npz.safetensors"]
    assert np.array_equal(load_latents("lat/good.npz.safetensors").tensor.numpy(), GOOD)


def test_a_number_without_shape_is_told_of(folders: Any) -> None:
    write_photo(Path("photos/a.png"))
    Path("cache/_latent_cache").mkdir(parents=True)
    save_file({"latent": torch.zeros(())}, "cache/_latent_cache/a_x.safetensors", TOOLKIT)
    words = ("--from", "ai-toolkit", "--arch", "sdxl", "--size", "96x96", "--vae", folders("sdxl"), "--no-progress")
    code, _, lines = tvae("convert", "cache", "lat", *words, "--source", "photos")
    assert code == 3
    assert "not float32 []" in lines[0]


@pytest.mark.parametrize("number", ["9" * 5000, "9" * 10, "²", "٣", "-1", ""])
def test_numbers_in_texts_are_small_ones(folders: Any, number: str) -> None:
    """What has others is no file of the trainer's. int() of more than 4300 digits was an error of Python's."""
    write_photo(Path("photos/a.png"))
    Path("cache/_latent_cache").mkdir(parents=True)
    latents = {"latent": torch.from_numpy(GOOD)}
    save_file(latents, "cache/_latent_cache/a_x.safetensors", TOOLKIT)
    save_file(latents, "cache/_latent_cache/b_x.safetensors", {**TOOLKIT, "filename": "b.png", "crop_x": number})
    words = ("--from", "ai-toolkit", "--arch", "sdxl", "--size", "96x96", "--vae", folders("sdxl"), "--no-progress")
    assert tvae("convert", "cache", "lat", *words, "--source", "photos")[0] == 0
    assert [*files_below(Path("lat"))] == ["a.png.safetensors"]


def test_a_link_that_leads_nowhere_is_a_users_file(folders: Any) -> None:
    write_photo(Path("photos/a.png"))
    assert tvae("encode", "photos", "-o", "lat", "--vae", folders("sdxl"), "--posterior", "moments")[0] == 0
    Path("cache").mkdir()
    os.symlink("nowhere", "cache/a_0096x0064_sdxl.npz")
    words = ("convert", "lat", "cache", "--for", "kohya", *KOHYA)
    code, _, lines = tvae(*words)
    assert code == 3
    assert "exists and tvae did not write it" in lines[0]
    assert os.readlink("cache/a_0096x0064_sdxl.npz") == "nowhere"
    assert tvae(*words, "--overwrite")[0] == 0


def test_a_folder_without_latents_is_told_of(folders: Any) -> None:
    write_photo(Path("photos/a.png"))
    for into in (("--for", "kohya", *KOHYA), ("--for", "ai-toolkit")):
        code, _, lines = tvae("convert", "photos", "cache", *into)
        assert (code, len(lines)) == (3, 1)
        assert "photos: no latents in this folder" in lines[0]
    assert not Path("cache").exists()


def test_a_record_does_not_say_which_of_a_users_files_go(folders: Any) -> None:
    """It may have come with the data set. The trainer's own older file goes, as it should."""
    write_photo(Path("photos/a.png"), 96, 64)
    assert tvae("encode", "photos", "-o", "lat", "--vae", folders("sdxl"), "--posterior", "moments")[0] == 0
    words = ("convert", "lat", "cache", "--for", "kohya", *KOHYA)
    assert tvae(*words)[0] == 0
    old = Path("cache/a_0064x0064_sdxl.npz")
    old.write_bytes(Path("cache/a_0096x0064_sdxl.npz").read_bytes())
    mine = write_photo(Path("cache/mine.png"))
    Path("elsewhere").mkdir()
    Path("elsewhere/b_0064x0064_sdxl.npz").touch()
    os.symlink("../elsewhere", "cache/there")
    (place,) = Path("cache/.tvae-cache").rglob("*.json")
    record = read_record(place)
    stale = (old.name, mine.name, "there/b_0064x0064_sdxl.npz")
    write_record(place, replace(record, stale=stale, options={**record.options, "seed": 7}))
    assert tvae(*words)[0] == 0
    assert not old.exists()
    assert mine.exists()
    assert Path("elsewhere/b_0064x0064_sdxl.npz").exists()


def test_a_piece_that_begins_nowhere(folders: Any) -> None:
    """Its latents could be written, and not be read again."""
    Path("photos").mkdir()
    write_clip(Path("photos/a.mkv"), 5, sound=False, side=64)
    Path("cache").mkdir()
    latents = {"latents_2x8x8_bfloat16": torch.zeros(16, 2, 8, 8, dtype=torch.bfloat16)}
    save_file(latents, f"cache/a_{'9' * 20}-005_0064x0064_wan.safetensors")
    words = ("convert", "cache", "lat", "--from", "musubi", "--arch", "wan", "--vae", folders("wan"), "--size", "64x64")
    code, _, lines = tvae(*words, "--source", "photos", "--no-progress")
    assert code == 3
    assert "is of no piece that there is" in lines[0]
    assert files_below(Path("lat")) == {}


@pytest.mark.parametrize("damage", [lambda whole: b"\xff" * 8 + whole[8:], lambda whole: whole[:100], lambda _: b""])
@pytest.mark.parametrize("recorded", [True, False])
def test_a_damaged_file_of_ai_toolkits_is_named(folders: Any, damage: Any, recorded: bool) -> None:
    """All that is known of it but its name stands in its header."""
    for name in "ab":
        write_photo(Path(f"photos/{name}.png"))
    words = ("--arch", "sdxl", "--size", "96x96", "--vae", folders("sdxl"), "--no-progress")
    assert tvae("cache", "photos", "--for", "ai-toolkit", "-o", "cache", *words)[0] == 0
    (path,) = Path("cache/_latent_cache").glob("a_*")
    path.write_bytes(damage(path.read_bytes()))
    if not recorded:
        shutil.rmtree("cache/.tvae-cache")
    code, _, lines = tvae("convert", "cache", "lat", "--from", "ai-toolkit", *words, "--source", "photos")
    assert (code, len(lines)) == (3, 1), lines
    assert path.name in lines[0]
    assert "damaged" in lines[0]
    assert [*files_below(Path("lat"))] == ["b.png.safetensors"]
