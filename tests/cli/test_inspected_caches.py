"""``tvae inspect`` of folders: which caches lie in them, from records that may be damaged or a joke."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from program import invoke


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("photos").mkdir()
    for n in range(3):
        pixels = np.random.default_rng(n).integers(0, 256, (64, 96, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(f"photos/{n}.png")


def call(*words: str) -> tuple[int, str, str]:
    done = invoke([*words])
    return done.exit_code, done.stdout, done.stderr


def rows(folder: str) -> list[dict[str, Any]]:
    code, told, _ = call("inspect", folder, "--json")
    found = json.loads(told)
    assert (code, found["type"], found["path"]) == (0, "caches", folder)
    return found["caches"]


def test_a_folder_of_caches() -> None:
    for words in (["--for", "comfy", "--arch", "kl"], ["--for", "webdataset"]):
        assert call("cache", "photos", *words, "--size", "64x64", "-o", "made")[0] == 0
    assert call("cache", "photos/0.png", "--for", "comfy", "--arch", "kl", "--size", "32x32", "-o", "small")[0] == 0
    comfy, shards = rows("made")
    assert [comfy[name] for name in ("trainer", "architecture", "resolution")] == ["comfy", "kl", [64, 64]]
    stored = [*Path("made").glob("*.latent")]
    assert (comfy["sources"], comfy["files"], comfy["bytes"]) == (3, 3, sum(one.stat().st_size for one in stored))
    assert (shards["trainer"], shards["sources"], shards["files"]) == ("webdataset", 3, 1)
    assert shards["bytes"] == Path("made/00000.tar").stat().st_size
    assert comfy["vae"]["id"] == "builtin"
    told = call("inspect", "made", "small")[1]
    assert "made: 2 caches that tvae wrote" in told
    assert "comfy  kl, at 64x64, by builtin" in told
    assert "small: 1 cache that tvae wrote" in told


def test_records_that_are_none() -> None:
    assert call("cache", "photos", "--for", "comfy", "--arch", "kl", "--size", "64x64", "-o", "made")[0] == 0
    first, second, _ = sorted(Path("made/.tvae-cache").rglob("*.json"))
    first.write_text("{")
    second.write_text('{"format": "tvae cache"}')
    (row,) = rows("made")
    assert row["sources"] == 1


def test_a_folder_of_anything_else() -> None:
    code, _, told = call("inspect", "photos")
    assert code == 3
    assert "photos is a folder without latents of a video, a VAE or a cache; name a file in it" in told
