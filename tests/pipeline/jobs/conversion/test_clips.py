"""Videos of trainers that keep one file of each: what it does not say, and what the video itself says."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from clips import write_clip
from conversions import files_below, tvae, write_photo
from slow_but import slow_but

from tvae.pipeline import load_latents


@pytest.mark.slow
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    ("trainer", "arch", "vae"), slow_but([("ltx", "ltx2", "ltx2")], [("ltx", "ltx2", "ltx2"), ("comfy", "wan", "wan")])
)
def test_one_file_of_each(folders: Any, trainer: str, arch: str, vae: str, known: bool) -> None:
    write_photo(Path("films/sub/p.png"), 64, 64)
    write_clip(Path("films/c.mkv"), 9, sound=False, side=64)
    settings = ("--arch", arch, "--size", "64x64", "--recursive")
    of_vae = ("--vae", folders(vae))
    assert tvae("cache", "films", "-o", "cache", "--for", trainer, *settings, *of_vae)[0] == 0
    if not known:
        shutil.rmtree("cache/.tvae-cache")
    words = ("convert", "cache", "lat", "--from", trainer, *settings, *of_vae)
    code, _, told = tvae(*words)
    if known:
        assert (code, len(told), "does not keep the size of a picture" in told[0]) == (3, 2, True)
    code, _, told = tvae(*words, "--source", "films")
    assert (code, told) == (0, [])
    found = load_latents("lat/c.mkv.latents")
    assert (float(found.meta.frame_rate), len(found.pts)) == (25, 9)
    assert load_latents("lat/sub/p.png.safetensors").meta.kind == "image"
    assert tvae("convert", "lat", "back", "--for", trainer, *settings)[0] == 0
    assert [*files_below(Path("back"))] == [*files_below(Path("cache"))]
    if trainer == "ltx":
        for name in files_below(Path("cache")):
            one, other = (torch.load(Path(root, name), weights_only=True) for root in ("cache", "back"))
            assert one["latents"].equal(other["latents"])
            assert {**one, "latents": 0} == {**other, "latents": 0}
    else:
        assert files_below(Path("back")) == files_below(Path("cache"))


@pytest.mark.long
def test_between_trainers(folders: Any) -> None:
    write_clip(Path("c.mkv"), 9, sound=False, side=64)
    of_vae = ("--vae", folders("wan"), "--size", "64x64")
    tvae("cache", "c.mkv", "-o", "cache", "--for", "musubi", "--arch", "wan", *of_vae)
    words = ("--from", "musubi", "--from-arch", "wan", "--for", "comfy", "--arch", "wan", "--buckets", "off", *of_vae)
    code, _, told = tvae("convert", "cache", "out", *words)
    assert (code, "does not keep the size of a video" in told[0]) == (3, True)
    assert tvae("convert", "cache", "out", *words, "--source", ".")[0] == 0
    assert [*files_below(Path("out"))] == ["c.latent"]
    code, _, told = tvae("convert", "cache", "out", *words[:-6], "--arch", "kl", *of_vae, "--source", ".")
    assert (code, "is not comfy's for kl" in told[0]) == (2, True)


@pytest.mark.long
def test_a_name_that_says_other_frames(folders: Any) -> None:
    write_clip(Path("c.mkv"), 9, sound=False, side=64)
    of_vae = ("--vae", folders("wan"), "--arch", "wan", "--size", "64x64")
    tvae("cache", "c.mkv", "-o", "cache", "--for", "musubi", *of_vae)
    shutil.rmtree("cache/.tvae-cache")
    Path("cache/c_00000-009_0064x0064_wan.safetensors").rename("cache/c_00000-013_0064x0064_wan.safetensors")
    code, _, told = tvae("convert", "cache", "lat", "--from", "musubi", *of_vae, "--source", ".")
    assert (code, "of 13 frames, and its latents are of 9" in told[0]) == (3, True)
